"""Small files that unpack to large ones, and odd ones: read or refused within a memory limit."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.robustness import attack_files
from benchmarks.robustness.attack_files import good_png
from benchmarks.robustness.attacks import MEMORY, Attack, harm, limit_memory

GROUP = "oversized and odd files"
GIB = 1 << 30


def attacks() -> Iterator[Attack]:
    """Yield every oversized table, corpus, picture, cell, checkpoint and configuration."""
    for name in TABLES:
        yield _attack(f"predictions: {name}", partial(_gap, name), 40)
    for name in CORPORA:
        yield _attack(f"corpus: {name}", partial(_corpus, name))
    for name in PICTURES:
        yield _attack(f"picture of a benchmark: {name}", partial(_picture, name))
        yield _attack(f"picture of a corpus: {name}", partial(_picture_of_corpus, name))
    for name in CELLS:
        yield _attack(f"cell of a benchmark: {name}", partial(_cell, name))
    for name in CHECKPOINTS:
        yield _attack(f"checkpoint: {name}", partial(_checkpoint, name), 40)
    for name in CONFIGURATIONS:
        yield _attack(f"configuration: {name}", partial(_configuration, name))


def _attack(name: str, act: Callable[[Path], Sequence[str] | None], seconds: float = 20) -> Attack:
    return Attack(GROUP, name, act, seconds=seconds, memory=MEMORY)


# --- tables ---------------------------------------------------------------------------------------


def _parquet_rows(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    n = 1_000_000
    number, text = pa.array([1] * n, pa.int32()), pa.array(["A"] * n)
    rows = pa.table({"index": number, "question": text, "answer": text, "prediction": text})
    with pq.ParquetWriter(path, rows.schema, compression="zstd") as writer:
        for _ in range(40):
            writer.write_table(rows)


def _parquet_text(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.array(["x" * (4 << 20)] * 1000)
    few = pa.array(["A"] * 1000)
    rows = pa.table({"index": range(1000), "question": text, "answer": few, "prediction": few})
    pq.write_table(rows, path, compression="zstd")


def _parquet_columns(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({f"c{i}": [1] for i in range(50_000)}), path)


def _workbook(sheet: Callable[[], Iterator[bytes]], strings: int = 0) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        import pandas as pd

        frame = pd.DataFrame({"index": [1], "question": "q", "answer": "A", "prediction": "A"})
        small = io.BytesIO()
        frame.to_excel(small, index=False)
        with zipfile.ZipFile(small) as source, zipfile.ZipFile(path, "w", 8) as target:
            for name in source.namelist():
                with target.open(name, "w", force_zip64=True) as member:
                    if name == "xl/worksheets/sheet1.xml":
                        for piece in sheet():
                            member.write(piece)
                    else:
                        member.write(source.read(name))

    return write


def _rows(n: int) -> Iterator[bytes]:
    yield b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    row = b"<row>" + b'<c t="inlineStr"><is><t>A</t></is></c>' * 20 + b"</row>"
    for _ in range(n // 1000):
        yield row * 1000
    yield b"</sheetData></worksheet>"


def _zeros() -> Iterator[bytes]:
    for _ in range(256):
        yield b" " * (16 << 20)


def _far_cell() -> Iterator[bytes]:
    yield b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    for row in (1, 1_048_576):
        yield b'<row r="%d"><c r="A%d"><v>1</v></c><c r="XFD%d"><v>1</v></c></row>' % ((row,) * 3)
    yield b"</sheetData></worksheet>"


def _entities(path: Path) -> None:
    path.write_bytes(b"")
    levels = b"".join(b'<!ENTITY e%d "%s">' % (i, b"&e%d;" % (i - 1) * 10) for i in range(1, 10))
    text = b'<?xml version="1.0"?><!DOCTYPE w [<!ENTITY e0 "lol">' + levels + b"]>"
    text += b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
    text += b"<sheetData><row><c t='inlineStr'><is><t>&e9;</t></is></c></row></sheetData>"

    def sheet() -> Iterator[bytes]:
        yield text + b"</worksheet>"

    _workbook(sheet)(path)


def _text(head: str, body: str, n: int, tail: str = "") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("w") as file:
            file.write(head)
            for _ in range(n):
                file.write(body)
            file.write(tail)

    return write


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"index,question,answer,prediction\n1,q,A,A\n")
        file.truncate(8 * GIB)


def _inspect_log(path: Path) -> None:
    with zipfile.ZipFile(path, "w", 8) as archive:
        archive.writestr("header.json", "{}")
        with archive.open("samples/1_epoch_1.json", "w", force_zip64=True) as member:
            member.write(b'{"input": "')
            for piece in _zeros():
                member.write(piece)
            member.write(b'"}')


def _many_members(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(60_000):
            archive.writestr(f"samples/{number}.json", "")


_HEAD = "index,question,answer,prediction\n"
TABLES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "parquet of 40 million rows": ("parquet", _parquet_rows),
    "parquet of 4 GB of text": ("parquet", _parquet_text),
    "parquet of 50,000 columns": ("parquet", _parquet_columns),
    "xlsx of 1 million rows": ("xlsx", _workbook(lambda: _rows(1_000_000))),
    "xlsx of 4 GB of blanks": ("xlsx", _workbook(_zeros)),
    "xlsx with cells in its corners": ("xlsx", _workbook(_far_cell)),
    "xlsx with nested entities": ("xlsx", _entities),
    "csv of 8 GB, sparse": ("csv", _sparse),
    "json of 8 GB, sparse": ("json", _sparse),
    "jsonl of 8 GB, sparse": ("jsonl", _sparse),
    "tsv of 8 GB, sparse": ("tsv", _sparse),
    "csv with a cell of 300 MB": ("csv", _text(_HEAD + '1,"', "x" * 1_000_000, 300, '",A,A\n')),
    "csv of 3 million rows": ("csv", _text(_HEAD, "1,q,A,A\n" * 1000, 3000)),
    "csv of 1 million columns": ("csv", _text("", "c,", 1_000_000, "c\n")),
    "json of 30 million numbers": ("json", _text("[0", ",1" * 1000, 30_000, "]")),
    "json of 2 million empty objects": ("json", _text("[{}", ",{}" * 1000, 2000, "]")),
    "jsonl of brackets": ("jsonl", _text("", "[" * 1000, 20_000)),
    ".eval with a sample of 4 GB": ("eval", _inspect_log),
    ".eval of 60,000 empty samples": ("eval", _many_members),
}
"""Tables of predictions by kind: their suffix, and what writes one."""


def _gap(name: str, folder: Path) -> Sequence[str]:
    suffix, write = TABLES[name]
    write(folder / f"a.{suffix}")
    (folder / "b.csv").write_text(_HEAD + "1,q,B,A\n")
    return ("gap", f"a.{suffix}", "b.csv")


# --- corpora --------------------------------------------------------------------------------------


def _sparse_tar(path: Path) -> None:
    size = b"%011o\0" % (7 * GIB)
    header = bytearray(tarfile.TarInfo("s.png").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"%011o\0" % 0
    header[156:157] = b"S"
    header[257:265] = b"ustar  \0"
    header[386:398], header[398:410] = size, b"%011o\0" % 0
    header[482:483] = b"\0"
    header[483:495] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    _tar(path, bytes(header))


def _tar(path: Path, more: bytes = b"", opener: Callable[..., object] = open) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(good_png())
            tar.addfile(member, io.BytesIO(good_png(number)))
    blocks = stream.getvalue().rstrip(b"\0")
    blocks += b"\0" * (-len(blocks) % 512)
    with opener(path, "wb") as file:  # type: ignore[attr-defined]
        file.write(blocks + more + b"\0" * 1024)


def _large_member(path: Path) -> None:
    member = tarfile.TarInfo("9.png")
    member.size = 6 * GIB
    with gzip.open(path, "wb", 9) as file:
        for number in range(3):
            good = tarfile.TarInfo(f"{number}.png")
            good.size = len(good_png())
            file.write(good.tobuf() + good_png(number))
            file.write(b"\0" * (-good.size % 512))
        file.write(member.tobuf())
        piece = b"\0" * (16 << 20)
        for _ in range(96):  # and then it is cut
            file.write(piece)


def _long_header(path: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 6 * GIB
    _tar(path, header.tobuf(tarfile.GNU_FORMAT) + b"a" * 4096)


def _pax_header(path: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 3 * GIB
    _tar(path, header.tobuf(tarfile.GNU_FORMAT) + b"9" * 4096)


def _zip(path: Path, size: int = 3 * GIB) -> None:
    with zipfile.ZipFile(path, "w", 8, compresslevel=1) as archive:
        for number in range(3):
            archive.writestr(f"{number}.png", good_png(number))
        with archive.open("9.png", "w", force_zip64=True) as member:
            piece = b"\0" * (16 << 20)
            for _ in range(size // len(piece)):
                member.write(piece)


def _lying_zip(path: Path) -> None:
    _zip(path, 1 * GIB)
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<I", GIB), struct.pack("<I", 1000)))


def _corpus_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = pa.array([*(good_png(n) for n in range(3)), *([b"\0" * (300 << 20)] * 4)], pa.binary())
    pq.write_table(pa.table({"image": cells}), path, compression="zstd", row_group_size=1)


def _one_row_group(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = pa.array(
        [good_png(0)] * 3 + [good_png(0) + b"\0" * (1 << 20)] * 4096, pa.large_binary()
    )
    pq.write_table(pa.table({"image": cells}), path, compression="zstd")


CORPORA: dict[str, tuple[str, Callable[[Path], None]]] = {
    "sparse tar": ("c.tar", _sparse_tar),
    "tar.gz with a member of 6 GB": ("c.tar.gz", _large_member),
    "tar with a name of 6 GB": ("c.tar", _long_header),
    "tar with a pax header of 3 GB": ("c.tar", _pax_header),
    "zip with a member of 3 GB": ("c.zip", _zip),
    "zip that lies about a size": ("c.zip", _lying_zip),
    "parquet with cells of 300 MB": ("c.parquet", _corpus_parquet),
    "parquet with a row group of 4 GB": ("c.parquet", _one_row_group),
}
"""Corpora of three good pictures and an oversized one."""


def _corpus(name: str, folder: Path) -> None:
    file, write = CORPORA[name]
    (folder / "secret.png").write_bytes(b"no picture")
    write(folder / file)
    limit_memory(MEMORY)
    n_good = 0 if "pax" in name or "row group" in name else 3
    attack_files._read_corpus(str(folder / file), n_good)


# --- pictures -------------------------------------------------------------------------------------


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, *, depth: int = 8, color: int = 2, rows: int = 1) -> bytes:
    about = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    squeeze = zlib.compressobj(9)
    line = b"\0" * (1 + width * depth * {0: 1, 2: 3, 3: 1, 6: 4}[color] // 8)
    data = b"".join(squeeze.compress(line) for _ in range(rows)) + squeeze.flush()
    palette = _chunk(b"PLTE", b"\0\0\0") if color == 3 else b""
    chunks = _chunk(b"IHDR", about) + palette + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _text_bomb() -> bytes:
    zipped = zlib.compress(b"\0" * (512 << 20), 9)
    text = _chunk(b"zTXt", b"a\0\0" + zipped) + _chunk(b"iCCP", b"a\0\0" + zipped)
    good = good_png()
    return good[:33] + text + good[33:]


def _jpeg(width: int, height: int, *, progressive: bool = False, scans: int = 1) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(stream, "JPEG", progressive=progressive)
    data = bytearray(stream.getvalue())
    at = data.find(b"\xff\xc2" if progressive else b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    if scans > 1:
        start = data.find(b"\xff\xda")
        data = data[:start] + data[start:-2] * scans + data[-2:]
    return bytes(data)


def _exif(n: int) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(stream, "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", 65535) + b"Exif\0\0" + b"\0" * 65527
    return stream.getvalue()[:2] + segment * n + stream.getvalue()[2:]


def _frames(kind: str, n: int) -> Callable[[], bytes]:
    def make() -> bytes:
        from PIL import Image

        stream = io.BytesIO()
        frames = [Image.new("P", (512, 512), i % 2) for i in range(n)]
        frames[0].save(stream, kind, save_all=True, append_images=frames[1:])
        return stream.getvalue()

    return make


def _gif_canvas() -> bytes:
    return b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\x80\0\0" + b"\0" * 6 + (
        b"," + struct.pack("<HHHH", 0, 0, 65535, 65535) + b"\0\x02\x02D\x01\0;"
    )  # fmt: skip


def _eps() -> bytes:
    return (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9999 9999\n%%EndComments\n"
        b"(%pipe%touch EXECUTED) (w) file { } loop\n%%EOF\n"
    )


def _tiff(width: int, height: int) -> bytes:
    tags = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 32773), (262, 3, 1)]
    tags += [(273, 4, 200), (277, 3, 1), (278, 4, height), (279, 4, 2)]
    body = struct.pack("<H", len(tags))
    body += b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    data = b"II*\0" + struct.pack("<I", 8) + body + b"\0" * 4
    return data.ljust(200, b"\0") + b"\x81\0"


def _webp(width: int, height: int) -> bytes:
    bits = (width - 1) | (height - 1) << 14
    data = b"\x2f" + struct.pack("<I", bits) + b"\0" * 20
    chunk = b"VP8L" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def _bmp(width: int, height: int) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 200, 0, 0, 54) + head + b"\0" * 100


PICTURES: dict[str, Callable[[], bytes]] = {
    "JPEG that claims 7,999 by 7,999": lambda: _jpeg(7999, 7999),
    "JPEG that claims 65,500 by 65,500": lambda: _jpeg(65500, 65500),
    "progressive JPEG that claims 7,999 by 7,999": lambda: _jpeg(7999, 7999, progressive=True),
    "JPEG of 2,000 scans": lambda: _jpeg(4000, 4000, progressive=True, scans=2000),
    "JPEG with 800 EXIF segments": lambda: _exif(800),
    "PNG that claims 60,000 by 60,000": lambda: _png(60000, 60000),
    "PNG of 20,000 by 20,000": lambda: _png(20000, 20000, depth=1, color=0, rows=20000),
    "PNG of 1 by 100 million": lambda: _png(1, 100_000_000),
    "PNG with a text of 512 MB": _text_bomb,
    "GIF of 2,000 frames": _frames("GIF", 2000),
    "GIF that claims 65,535 by 65,535": _gif_canvas,
    "TIFF that claims 60,000 by 60,000": lambda: _tiff(60000, 60000),
    "TIFF that claims 7,999 by 7,999": lambda: _tiff(7999, 7999),
    "WebP that claims 16,384 by 16,384": lambda: _webp(16384, 16384),
    "BMP that claims 2 billion by 7": lambda: _bmp(2_000_000_000, 7),
    "BMP that claims 7,999 by 7,999": lambda: _bmp(7999, 7999),
    "EPS that starts a program": _eps,
    "PDF": lambda: b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\n%%EOF\n",
    "SVG with nested entities": lambda: b'<!DOCTYPE s [<!ENTITY a "aaaa">]><svg>&a;</svg>',
    "PPM that claims 60,000 by 60,000": lambda: b"P6 60000 60000 255\n\0",
    "FITS header without an end": lambda: b"SIMPLE  =                    T".ljust(2880) * 2000,
    "ICNS, empty": lambda: b"icns\0\0\0\x08",
    "Sun raster that claims 2 billion": lambda: struct.pack(
        ">8I", 0x59A66A95, 2_000_000_000, 2, 24, 1, 1, 0, 0
    ),
}
"""Pictures that claim or unpack to more than they hold, or need another program."""


def _picture(name: str, folder: Path) -> Sequence[str] | None:
    inside = attack_files.plant(folder)
    (inside / "odd.png").write_bytes(PICTURES[name]())
    words = attack_files._tsv(inside, "odd.png")
    return _limited(words, folder)


def _limited(words: Sequence[str], folder: Path) -> None:
    limit_memory(MEMORY)
    attack_files._checked(words, folder, odd_may_be_read=True)
    if (folder / "EXECUTED").exists():
        harm("executed", "a program was started")


def _picture_of_corpus(name: str, folder: Path) -> Sequence[str]:
    import yaml

    inside = attack_files.plant(folder)
    (inside / "odd.png").write_bytes(PICTURES[name]())
    config = {
        "run": "r",
        "benchmark": {"format": "shapes", "n_items": 3},
        "audit": {"checks": ["duplicates"], "corpus": {"pictures": "inside", "n_sample": 4}
        | {"encoders": ["phash"]}},
    }  # fmt: skip
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    return ("audit", "c.yaml", "-q")


CELLS = {
    "an integer of 200,000 hexadecimal digits": "[0x" + "f" * 200_000 + "]",
    "3,000 signs": "[" + "-" * 3000 + "1]",
    "100,000 signs": "[" + "-" * 100_000 + "1]",
    "a sum of 100,000": "[" + "1+" * 100_000 + "1]",
    "50,000 texts": "['" + "a', '" * 50_000 + "b']",
    "100,000 brackets": "[" * 100_000 + "]" * 100_000,
    "1 million digits": "[" + "9" * 1_000_000 + "]",
    "20 MB of base64": "iVBORw0KGgo" + "A" * 20_000_000,
    "a data URL of an EPS": "data:image/png;base64,JSFQUy1BZG9iZS0zLjA=",
    "a list of true": "[True, None, 1.5, {}]",
    "concatenated texts": "[" + "'a' " * 200_000 + "]",
    "an f-string": "[f'{9**9**9}']",
}
"""Cells of a column of pictures."""


def _cell(name: str, folder: Path) -> None:
    inside = attack_files.plant(folder)
    _limited(attack_files._tsv(inside, CELLS[name]), folder)


# --- checkpoints and configurations ---------------------------------------------------------------

_NESTED = "[" * 50_000 + "]" * 50_000
CHECKPOINTS: dict[str, tuple[str, bytes]] = {
    "weights with a header of 2⁶⁰ bytes": ("model.safetensors", struct.pack("<Q", 1 << 60)),
    "weights with a header of 1 GB": ("model.safetensors", struct.pack("<Q", 1 << 30) + b"{"),
    "tokenizer of brackets": ("tokenizer.json", _NESTED.encode()),
    "configuration of brackets": ("config.json", _NESTED.encode()),
    "configuration of 10¹² layers": ("config.json", b""),
    "template that doubles a text": (
        "chat_template.jinja",
        b"{% set ns = namespace(x='x') %}{% for i in range(40) %}"
        b"{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    ),
    "template that loops": (
        "chat_template.jinja",
        b"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}x",
    ),
    "template that multiplies a text": ("chat_template.jinja", b"{{ 'x' * 9999999999 }}"),
    "template that takes a power": ("chat_template.jinja", b"{{ 9 ** 9 ** 9 }}"),
    "template that calls itself": (
        "chat_template.jinja",
        b"{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    ),
    "template that pads a text": ("chat_template.jinja", b"{{ '%9999999999d' % 1 }}"),
    "template that reaches for os": (
        "chat_template.jinja",
        b"{{ cycler.__init__.__globals__.os.system('touch EXECUTED') }}",
    ),
}
"""Files of a checkpoint: name and content."""


def _checkpoint(name: str, folder: Path) -> Sequence[str]:
    import shutil

    from flipbench.models.vlm.checkpoints import resolve_path

    shutil.copytree(resolve_path("shapes:llava"), folder / "model")
    file, content = CHECKPOINTS[name]
    path = folder / "model" / file
    if not content:
        about = json.loads(path.read_text())
        about["text_config"]["num_hidden_layers"] = 10**12
        content = json.dumps(about).encode()
    path.write_bytes(content)
    pairs = Path.cwd().parent / "template" / "pairs"
    words = ("detect", "--model", "model", "--benchmark", str(pairs), "--out", "out", "-q")
    return (*words, "--detectors", "perturbation_gap")


def _aliases(n: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, n)]
    return "\n".join(lines) + "\nrun: r\n"


CONFIGURATIONS: dict[str, Callable[[], str]] = {
    "aliases of aliases": lambda: _aliases(12),
    "brackets": lambda: "run: " + "[" * 20_000,
    "a mapping 5,000 deep": lambda: "".join(" " * i + "a:\n" for i in range(3000)),
    "an alias of itself": lambda: "run: &a [*a]\n",
    "merges of merges": lambda: "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 8)}]\n  k{i}: 1\n" for i in range(1, 12)
    ),
    "50 MB": lambda: "run: r\ntitle: " + "x" * 50_000_000,
    "a number of 100,000 digits": lambda: "run: r\nseed: " + "9" * 100_000,
    "1e999999 items": lambda: "run: r\nbenchmark: {format: shapes, n_items: 1e999999}\n",
    "10¹² items": lambda: "run: r\nbenchmark: {format: shapes, n_items: 1000000000000}\n",
    "bases that extend each other": lambda: "extends: c.yaml\nrun: r\n",
}  # fmt: skip
"""Configurations as text."""


def _configuration(name: str, folder: Path) -> Sequence[str]:
    (folder / "c.yaml").write_text(CONFIGURATIONS[name]())
    return ("import", "c.yaml", "-q")
