"""Training splats on photographs: 3D Gaussian Splatting (Kerbl et al., 2023) with growth as in 3DGS-MCMC (Kheradmand
et al., 2024, arXiv:2404.09591) or as published, on the device that is there."""
