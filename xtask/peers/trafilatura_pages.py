"""Prints what trafilatura makes of HTML files, as one JSON object."""
import json
import sys

import trafilatura


def text(path):
    with open(path, "rb") as file:
        return trafilatura.extract(file.read(), output_format="markdown")


texts = {path: text(path) for path in sys.argv[1:]}
json.dump({path: found for path, found in texts.items() if found}, sys.stdout)
