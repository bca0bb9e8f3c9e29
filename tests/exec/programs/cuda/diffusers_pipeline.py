"""diffusers: Stable Diffusion in float16 on the GPU, with a generator there, then with its parts moved one by one."""

import torch
from tests.tiny_pipelines import stable_diffusion

torch.manual_seed(0)
pipe = stable_diffusion().to(torch.float16).to("cuda")
pipe.set_progress_bar_config(disable=True)
generator = torch.Generator(device="cuda").manual_seed(4)
result = pipe("a red cat at night", num_inference_steps=3, generator=generator, output_type="np", height=32, width=32)
print(pipe.device, pipe.unet.device, pipe.unet.dtype, result.images.shape)
print(result.images[0, 0, :3].tolist())
latents = torch.randn(1, 4, 16, 16, generator=generator, device="cuda", dtype=torch.float16)
pipe.unet.to(memory_format=torch.channels_last)
with torch.no_grad():
    states = torch.ones(1, 5, 64, device="cuda", dtype=torch.float16)
    found = pipe.unet(latents, torch.tensor(7, device="cuda"), encoder_hidden_states=states).sample
print(found.device, found.dtype, found.flatten()[:4].float().cpu().tolist())
