"""The command line of tests that draw what they do from a seed: BIN_DIR [--seed N] [--keep FOLDER] and options of their own."""
import argparse
import pathlib
import tempfile


def main(doc, test, seed, **own):
    """Runs test(options, folder) with a folder for all its output: a temporary one, or that of --keep. `own`: an option's default, by its name; it has
    the type of its default."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--keep", type=pathlib.Path, help="a new folder for all output, kept afterwards")
    for name, default in own.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    options.bin_dir = options.bin_dir.resolve()
    if options.keep:
        options.keep.mkdir(parents=True)
        return test(options, options.keep.resolve())
    with tempfile.TemporaryDirectory(prefix="nsa-test-") as folder:
        return test(options, pathlib.Path(folder))
