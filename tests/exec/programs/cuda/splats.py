"""gsplat, as splatfacto calls it: parameters on the GPU, packed off, colors as harmonics, a step of its strategy."""

import torch
from gsplat import rasterization
from gsplat.strategy import DefaultStrategy

torch.manual_seed(0)
count, device = 60, "cuda"
means = torch.randn(count, 3)
splats = torch.nn.ParameterDict({
    "means": torch.nn.Parameter(means), "quats": torch.nn.Parameter(torch.randn(count, 4)),
    "scales": torch.nn.Parameter(torch.full((count, 3), -1.5)), "opacities": torch.nn.Parameter(torch.zeros(count)),
    "features_dc": torch.nn.Parameter(torch.rand(count, 3)),
    "features_rest": torch.nn.Parameter(torch.zeros(count, 3, 3)),
}).to(device)  # fmt: skip
optimizers = {name: torch.optim.Adam([splats[name]], lr=1e-2) for name in splats}
strategy = DefaultStrategy(refine_start_iter=0, refine_every=2, grow_grad2d=1e-6, verbose=False)
strategy.check_sanity(splats, optimizers)
state = strategy.initialize_state(scene_scale=1.0)
viewmat = torch.eye(4, device=device)[None]
viewmat[0, 2, 3] = 4
ks = torch.tensor([[[30.0, 0, 16], [0, 30, 12], [0, 0, 1]]]).cuda()
target = torch.rand(24, 32, 3).to(device)
for step in range(4):
    render, alpha, info = rasterization(
        means=splats["means"], quats=splats["quats"], scales=torch.exp(splats["scales"]),
        opacities=torch.sigmoid(splats["opacities"]),
        colors=torch.cat((splats["features_dc"][:, None, :], splats["features_rest"]), dim=1),
        viewmats=viewmat, Ks=ks, width=32, height=24, packed=False, near_plane=0.01, far_plane=1e10,
        render_mode="RGB+ED", sh_degree=1, sparse_grad=False, absgrad=False, rasterize_mode="classic",
    )  # fmt: skip
    strategy.step_pre_backward(splats, optimizers, state, step, info)
    loss = (render[0, ..., :3] - target).abs().mean()
    loss.backward()
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    strategy.step_post_backward(splats, optimizers, state, step, info, packed=False)
    print(step, render.device, loss.item(), alpha.mean().item(), len(splats["means"]))
