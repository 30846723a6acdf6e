"""PyTorch for the tests of exported models: the distribution's (deploy/packages.sh torch)."""
import os
import sys


def torch_or_skip(what):
    """The module torch. Without it the test ends as skipped; `what` says what it then does not show."""
    try:
        import torch
    except ImportError:
        if os.path.realpath(sys.executable) != os.path.realpath("/usr/bin/python3"):  # another python3 is first on PATH
            os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
        print(f"SKIPPED: no PyTorch (deploy/packages.sh torch): {what}")
        sys.exit(77)
    torch.set_num_threads(1)
    return torch
