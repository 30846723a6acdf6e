"""Checks objects of Kubernetes against the types of its API, as the package kubernetes-types has them: one .d.ts file for each group and version."""
import pathlib
import re

IMPORT = re.compile(r'^import \{ ([^}]+) \} from "([^"]+)";$')
OPEN = re.compile(r"^export (?:declare )?interface (\w+) \{$")
FIELD = re.compile(r'^    (?:readonly )?"?([$\w-]+)"?(\?)?: (.*)$')
ALIAS = re.compile(r"^export (?:declare )?type (\w+) = (.+);$")
PLAIN = {"string": str, "number": (int, float), "boolean": bool}


class Schema:
    """The types below one folder. A type is named by its file and its name."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.files = {}

    def file(self, path):
        """The interfaces, aliases and imports of a file."""
        if path not in self.files:
            self.files[path] = self.read(path)
        return self.files[path]

    def read(self, path):
        found = {"interfaces": {}, "aliases": {}, "imports": {}}
        fields = None
        lines = iter((self.folder / path).with_suffix(".d.ts").read_text().splitlines())
        for line in lines:
            if match := IMPORT.match(line):
                other = (pathlib.PurePosixPath(path).parent / match[2])
                parts = []
                for part in other.parts:
                    parts = parts[:-1] if part == ".." else [*parts, part]
                found["imports"].update({name.strip(): "/".join(parts) for name in match[1].split(",")})
            elif match := ALIAS.match(line):
                found["aliases"][match[1]] = match[2]
            elif match := OPEN.match(line):
                fields = found["interfaces"].setdefault(match[1], {})
            elif fields is not None and (match := FIELD.match(line)):
                text = match[3]
                if text == "{":
                    text = "{" + next(lines).strip() + "}"
                    assert next(lines).strip() == "};", (path, line)
                fields[match[1]] = (match[2] is None, text.rstrip(";"))
            elif line == "}":
                fields = None
        return found

    def problems(self, thing):
        """What is wrong with an object that has apiVersion and kind."""
        group, _, version = thing["apiVersion"].rpartition("/")
        path = f"{group.split('.')[0] or 'core'}/{version}"
        if not (self.folder / path).with_suffix(".d.ts").exists():
            return [f"apiVersion: {thing['apiVersion']} is not in the schemas"]
        if thing["kind"] not in self.file(path)["interfaces"]:
            return [f"kind: {thing['kind']} is not in {thing['apiVersion']}"]
        return self.check(thing, thing["kind"], path, thing["kind"])

    def check(self, value, text, path, where):
        text = text.strip()
        if text in PLAIN:
            good = isinstance(value, PLAIN[text]) and (text == "boolean" or not isinstance(value, bool))
            return [] if good else [f"{where}: {value!r} is no {text}"]
        if text.startswith('"'):
            return [] if value == text.strip('"') else [f"{where}: {value!r} is not {text}"]
        if match := re.match(r"^Array<(.+)>$", text):
            if not isinstance(value, list):
                return [f"{where}: {value!r} is no list"]
            return [one for i, item in enumerate(value) for one in self.check(item, match[1], path, f"{where}[{i}]")]
        if match := re.match(r"^\{\s*\[name: string\]: (.+?);?\}$", text):
            if not isinstance(value, dict):
                return [f"{where}: {value!r} is no map"]
            return [one for key, item in value.items() for one in self.check(item, match[1].rstrip(";"), path, f"{where}.{key}")]
        if " | " in text:
            tries = [self.check(value, part, path, where) for part in text.split(" | ")]
            return min(tries, key=len)
        return self.check_named(value, text, path, where)

    def check_named(self, value, name, path, where):
        if name == "Quantity" and isinstance(value, int):  # the API takes a number for a quantity, too
            return []
        here = self.file(path)
        if name in here["aliases"]:
            return self.check(value, here["aliases"][name], path, where)
        if name in here["imports"]:
            return self.check_named(value, name, here["imports"][name], where)
        assert name in here["interfaces"], f"{where}: type {name} is not in {path}"
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no {name}"]
        fields = here["interfaces"][name]
        found = [f"{where}.{key}: {name} has no such field" for key in value if key not in fields]
        found += [f"{where}.{key}: missing" for key, (required, _) in fields.items() if required and key not in value]
        for key, item in value.items():
            if key in fields:
                found += self.check(item, fields[key][1], path, f"{where}.{key}")
        return found
