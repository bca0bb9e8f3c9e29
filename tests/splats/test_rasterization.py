"""gsplat's function on rung's rungs: cameras, modes, channels, gradients on the screen, refusals, and gsplat itself."""

import importlib
import sys

import pytest
import torch

from rung.core.errors import UsageError
from rung.ops.rasterize import LADDER, Camera, Splats
from rung.ops.rasterize.self_check import splats
from rung.splats import rasterization

REF = LADDER.rung("ref").load()
SCENE = splats(200, 2)
VIEWS = torch.eye(4).repeat(2, 1, 1)
VIEWS[1, 0, 3] = 0.3
SIZES = torch.tensor([[50.0, 0, 20.5], [0, 52.0, 15.5], [0, 0, 1]]).repeat(2, 1, 1)


def drawn(colors=SCENE.colors, degree=2, **options):
    return rasterization(*SCENE[:4], colors, VIEWS, SIZES, 41, 31, sh_degree=degree, **options)


def right(index, colors=SCENE.colors, degree=2, antialiased=False):
    camera = Camera(41, 31, 50.0, 52.0, 20.5, 15.5, degree, antialiased)
    doubles = Splats(*(tensor.double() for tensor in (*SCENE[:4], colors)))
    return REF.apply(doubles, VIEWS[index].double(), camera)


def near(got, want):
    assert got.shape == want.shape
    assert float((got - want).abs().max().detach()) < 1e-4


@pytest.mark.parametrize("style", ["classic", "antialiased"])
def test_every_camera_has_its_picture(style):
    color, alpha, meta = drawn(rasterize_mode=style, packed=False)
    assert not torch.equal(color[0], color[1])
    for index in range(2):
        want = right(index, antialiased=style == "antialiased")
        near(color[index], want.color)
        near(alpha[index, ..., 0], want.alpha)
        assert torch.equal(meta["radii"][index], want.radii)


def test_modes_and_backgrounds():
    want = right(0)
    alpha, expected = want.alpha[..., None], (want.depth / want.alpha.clamp_min(1e-10))[..., None]
    near(drawn(render_mode="D")[0][0], want.depth[..., None])
    visible = alpha[..., 0] > 0.05
    assert float((drawn(render_mode="ED")[0][0] - expected)[visible].abs().max().detach()) < 1e-3
    both = drawn(render_mode="RGB+D", backgrounds=torch.tensor([[0.2, 0.4, 0.6]] * 2))[0][0]
    near(both[..., 3], want.depth)
    near(both[..., :3], want.color + (1 - alpha) * torch.tensor([0.2, 0.4, 0.6]))


@pytest.mark.parametrize("channels", [1, 3, 7])
def test_any_number_of_channels(channels):
    colors = torch.rand(200, channels, generator=torch.Generator().manual_seed(1))
    color = drawn(colors, None)[0]
    assert color.shape == (2, 31, 41, channels)
    last = torch.nn.functional.pad(colors[:, -1:], (0, 2))
    near(color[1, ..., -1], right(1, last, None).color[..., 0])
    each = torch.stack([colors, colors.flip(0)])
    near(drawn(each, None)[0][0], color[0])
    near(drawn(each, None)[0][1], drawn(colors.flip(0), None)[0][1])


def test_the_gradient_on_the_screen_is_kept_for_growing():
    means = SCENE.means.clone().requires_grad_()
    color, _, meta = rasterization(means, *SCENE[1:4], SCENE.colors, VIEWS, SIZES, 41, 31, sh_degree=2)
    meta["means2d"].retain_grad()
    color.square().sum().backward()
    found = meta["means2d"].grad
    for index in range(2):
        screen = torch.zeros(200, 2, dtype=torch.double, requires_grad=True)
        camera = Camera(41, 31, 50.0, 52.0, 20.5, 15.5, 2)
        doubles = Splats(*(tensor.double() for tensor in SCENE))
        REF.apply(doubles, VIEWS[index].double(), camera, screen).color.square().sum().backward()
        assert float((found[index] - screen.grad).abs().max() / screen.grad.abs().max()) < 1e-3
    assert float(means.grad.abs().sum()) > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"camera_model": "fisheye"}, "camera_model='fisheye'"),
        ({"eps2d": 0.1}, "eps2d=0.1"),
        ({"color": 1}, "color=1"),
        ({"render_mode": "RGBD"}, "render_mode 'RGBD'"),
    ],
)
def test_what_would_be_another_picture_is_refused(options, words):
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        drawn(**options)


def test_absolute_gradients_of_every_camera_are_kept_for_growing():
    color, _, meta = drawn(SCENE.colors.clone().requires_grad_(), absgrad=True)
    color.square().sum().backward()
    found = meta["means2d"]
    for index in range(2):
        screen = torch.zeros(200, 4, dtype=torch.double, requires_grad=True)
        doubles = Splats(*(tensor.double() for tensor in SCENE))
        camera = Camera(41, 31, 50.0, 52.0, 20.5, 15.5, 2)
        REF.apply(doubles, VIEWS[index].double(), camera, screen).color.square().sum().backward()
        for here, there in ((found.grad, screen.grad[:, :2]), (found.absgrad, screen.grad[:, 2:])):
            assert float((here[index] - there).abs().max() / there.abs().max()) < 1e-3
    with pytest.raises(UsageError) as caught:
        drawn(torch.rand(200, 4), None, absgrad=True)
    assert "absgrad is computed for up to three" in str(caught.value.facts)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(UsageError) as caught:
        rasterization(SCENE.means, SCENE.quats[:5], *SCENE[2:4], SCENE.colors[:, :4], VIEWS, SIZES, 9, 9, sh_degree=2)
    assert "quats is (5, 4) and should be (200, 4)" in str(caught.value.facts)
    assert "sh_degree 2" in str(caught.value.facts)


@pytest.mark.parametrize(
    ("name", "column", "absolute"),
    [("DefaultStrategy", False, False), ("DefaultStrategy", True, True), ("MCMCStrategy", True, False)],
)
def test_a_trainer_with_gsplats_own_strategies_grows_and_learns(name, column, absolute):
    """The loop of gsplat's simple_trainer, and of splatfacto, whose opacities are [N, 1] and which grows by absolute
    gradients."""
    strategies = pytest.importorskip("gsplat.strategy")
    from rung.splats import gsplat as adapter

    torch.manual_seed(0)
    truth = rasterization(*SCENE[:4], SCENE.colors, VIEWS, SIZES, 41, 31, sh_degree=2)[0].detach()
    logits = torch.full((200,), -1.0)
    logits[:20] = -9.0  # gone out: relocated or pruned
    begun = {"means": SCENE.means + 0.02 * torch.randn(200, 3), "scales": SCENE.scales.log(), "quats": SCENE.quats}
    begun |= {"opacities": logits[:, None] if column else logits, "colors": torch.zeros_like(SCENE.colors)}
    params = torch.nn.ParameterDict({key: torch.nn.Parameter(value.clone()) for key, value in begun.items()})
    optimizers = {key: torch.optim.Adam([value], lr=1e-3 if key == "means" else 2e-2) for key, value in params.items()}
    options = {"refine_start_iter": 2, "refine_every": 5, "refine_stop_iter": 100}
    growing = {"grow_grad2d": 1e-7, "reset_every": 1000, "absgrad": absolute}
    growing = {"cap_max": 230} if name == "MCMCStrategy" else growing
    strategy = getattr(strategies, name)(**options, **growing, verbose=False)
    adapter.install()
    try:
        import gsplat

        strategy.check_sanity(params, optimizers)
        state, losses, counts = strategy.initialize_state(), [], []
        for step in range(12):
            v = params
            picture, _, info = gsplat.rasterization(
                *(v["means"], v["quats"], v["scales"].exp(), v["opacities"].flatten().sigmoid(), v["colors"]),
                *(VIEWS, SIZES, 41, 31),
                sh_degree=2,
                packed=False,
                absgrad=absolute,
            )
            loss = (picture - truth).abs().mean()
            strategy.step_pre_backward(params, optimizers, state, step, info)
            loss.backward()
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            last = {"lr": 1e-5} if name == "MCMCStrategy" else {"packed": False}
            strategy.step_post_backward(params, optimizers, state, step, info, **last)
            losses.append(float(loss.detach()))
            counts.append(len(params["means"]))
    finally:
        adapter.uninstall()
    assert losses[4] < losses[0]
    assert counts[4] == 200 < max(counts)
    assert all(bool(torch.isfinite(value).all()) for value in params.values())


def test_gsplat_draws_with_rung_while_it_is_installed():
    gsplat = pytest.importorskip("gsplat")
    from rung.splats import gsplat as adapter

    theirs = gsplat.rasterization
    adapter.uninstall()
    assert gsplat.rasterization is theirs
    adapter.install()
    adapter.install()
    try:
        assert gsplat.rasterization is gsplat.rendering.rasterization is rasterization
        color, _, _ = gsplat.rasterization(*SCENE[:4], SCENE.colors, VIEWS, SIZES, 41, 31, sh_degree=2)
        near(color[0], right(0).color)
    finally:
        adapter.uninstall()
    assert gsplat.rasterization is gsplat.rendering.rasterization is theirs


#: What of nerfstudio 1.1.5 says ``.cuda()``, whatever ``--machine.device-type`` is.
SPLATFACTO = """
class SplatfactoModel:
    def __init__(self, device):
        self.populate_modules()
        self.device = device
    def populate_modules(self):
        self.shs = torch.zeros(3).float().cuda()
    def get_outputs(self, camera):
        return camera.cuda() + self.shs.to(self.device)
    def elsewhere(self):
        return self.shs.cuda()
"""


@pytest.mark.parametrize("imported", ["before", "after"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="shows that .cuda() fails without rung")
def test_splatfacto_stays_on_its_device(tmp_path, monkeypatch, imported):
    pytest.importorskip("gsplat")
    from rung.splats import gsplat as adapter

    folder = tmp_path / "nerfstudio" / "models"
    folder.mkdir(parents=True)
    (folder / "splatfacto.py").write_text("import torch\n" + SPLATFACTO)
    monkeypatch.syspath_prepend(tmp_path)
    here = torch.device("cpu")
    try:
        if imported == "before":
            importlib.import_module("nerfstudio.models.splatfacto")
        adapter.install()
        adapter.install()
        model = importlib.import_module("nerfstudio.models.splatfacto").SplatfactoModel
        assert model(here).get_outputs(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]
        assert model(torch.device("meta")).get_outputs(torch.ones(3)).is_meta
        with pytest.raises((AssertionError, RuntimeError)):
            model(here).elsewhere()
        adapter.uninstall()
        with pytest.raises((AssertionError, RuntimeError)):
            model(here)
    finally:
        adapter.uninstall()
        for name in ("nerfstudio.models.splatfacto", "nerfstudio.models", "nerfstudio"):
            sys.modules.pop(name, None)
