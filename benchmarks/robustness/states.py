"""What a run holds, compared with what another one does."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORDS = ("items", "flips", "captions", "edits", "verdicts", "probes", "responses", "plans")


@dataclass
class State:
    """What a run holds: records by folder and id, and other files by their hash."""

    records: dict[str, Counter[str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, run: Path) -> State:
        state = cls()
        for path in sorted(run.rglob("*")):
            place = path.relative_to(run)
            if not path.is_file() or any(part.startswith(".") for part in place.parts):
                continue
            if place.parts[0] in RECORDS or place.match("checkpoints/*.jsonl"):
                lines = path.read_bytes().splitlines()
                state.records.setdefault(place.parts[0], Counter()).update(map(_plain, lines))
            elif not _is_volatile(place):
                data = path.read_bytes()
                if path.name == "flipbench_card.json":
                    data = _plain(data).encode()
                state.files[str(place)] = hashlib.sha256(data).hexdigest()
        return state

    def compare(self, other: State) -> Counter[str]:
        """Count what another run lost, doubled, and holds differently."""
        found: Counter[str] = Counter()
        for folder in self.records.keys() | other.records.keys():
            wanted, there = (s.records.get(folder, Counter()) for s in (self, other))
            lost, more = wanted - there, there - wanted
            doubled = {line: n for line, n in more.items() if line in wanted}
            found["doubled"] += sum(doubled.values())
            found["different"] += min(lost.total(), more.total() - sum(doubled.values()))
            found["lost"] += max(0, lost.total() - more.total() + sum(doubled.values()))
        names = self.files.keys() & other.files.keys()
        found["different"] += sum(self.files[n] != other.files[n] for n in names)
        found["lost"] += len(self.files.keys() - names)
        return found

    def differences(self, other: State) -> list[str]:
        """Name what differs, for messages."""
        names = [
            name
            for name in sorted(self.files.keys() | other.files.keys())
            if self.files.get(name) != other.files.get(name)
        ]
        for folder in sorted(self.records.keys() | other.records.keys()):
            wanted, there = (s.records.get(folder, Counter()) for s in (self, other))
            names += [f"{folder} -{line[:300]}" for line in (wanted - there)]
            names += [f"{folder} +{line[:300]}" for line in (there - wanted)]
        return names


def _plain(line: bytes) -> str:
    """Return a record or card without how long it took."""

    def timeless(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name != "seconds"}

    return json.dumps(json.loads(line, object_hook=timeless), sort_keys=True)


def _is_volatile(place: Path) -> bool:
    """Whether a file of an undisturbed run differs from time to time."""
    return place.parts[0] in ("config.yaml", "environment.json", "failures", "batches")
