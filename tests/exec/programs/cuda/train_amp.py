"""Plain training with autocast in float16, a GradScaler, workers and pinned memory; saved, loaded, trained on."""

import io

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.backends.cudnn.benchmark = True
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)  # GPU only
device = torch.device("cuda")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8 * 64, 32), torch.nn.GELU())
        self.out = torch.nn.Linear(32, 5)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        noise = torch.randn(len(x), 32, device=x.device)
        return self.out(self.head(torch.relu(self.norm(self.conv(x)))) + 0.1 * noise) * self.scale


images, labels = torch.randn(32, 3, 8, 8), torch.randint(0, 5, (32,))
loader = DataLoader(TensorDataset(images, labels), 8, shuffle=True, num_workers=1, pin_memory=True)
net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
begin = torch.cuda.Event(enable_timing=True)  # GPU only
begin.record()  # GPU only
for epoch in range(2):
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.cuda()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            logits = net(x)
            loss = torch.nn.functional.cross_entropy(logits, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(epoch, logits.dtype, loss.item(), norm.item(), scaler.get_scale())
    torch.cuda.synchronize()
assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated() >= 0  # GPU only
torch.cuda.empty_cache()  # GPU only
file = io.BytesIO()
torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
file.seek(0)
state = torch.load(file, map_location="cuda")
print({str(value.device) for value in state["net"].values()})
again = Net().to(device)
again.load_state_dict(state["net"])
optimizer = torch.optim.AdamW(again.parameters(), 1e-2)
optimizer.load_state_dict(state["optimizer"])
again.eval()(images.to(device)).square().mean().backward()
optimizer.step()
print(again.out.weight.detach().cpu().numpy()[0, :4].tolist(), again.norm.running_mean[:3])
