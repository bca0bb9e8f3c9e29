import inspect

import pytest
import torch

#: For what needs ``install``, which says that it cannot where a torch is older.
replaceable = pytest.mark.skipif(
    "allow_override" not in inspect.signature(torch.library.Library.impl).parameters,
    reason="this torch cannot replace the kernels of a library",
)
