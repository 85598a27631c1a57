"""Images a second from JPEG files to batches in the trainer's hands, beside loaders that people use.

    .venv/bin/python scripts/benchmarks/input.py
    .venv/bin/python scripts/benchmarks/input.py --images 960 --workers 1 2 --rounds 9 --json F

Photo-like JPEGs are generated (about 500x375 pixels and 100 KB) in class folders. Each line reads all of them in an
order of its own, with one worker or several:

    decoder                  files read and decoded by the family in use, nothing else, on as many threads
    decode + crop + flip     the pipeline of augmentations on top: RandomResizedCrop 224, HorizontalFlip
    kilobatch                the trainer's own loader, to uint8 batches of 32
    kilobatch, pillow        the same with Pillow
    kilobatch, nvimgcodec    the same with nvImageCodec, which decodes no more than the crop
    torchvision + Pillow     ImageFolder, RandomResizedCrop, RandomHorizontalFlip in a DataLoader, to uint8 batches
    torchvision's decoder    decode_jpeg of torchvision.io and transforms.v2 in a DataLoader, to uint8 batches
    ChainerCV                its transforms of an image read by Pillow, in Chainer's MultiprocessIterator
    DALI                     NVIDIA's pipeline on the CPU: image_random_crop, resize, flip

Peers that are not installed are left out by name. All take turns within a round, in one process; the workers of a
DataLoader and a MultiprocessIterator are processes that stay. A figure is the median over the rounds, a ratio that
of two figures of the same round. The first round is not counted. The last lines say how many cores 6,300 images/s would
need, which is what one H200 is expected to train.

Wall times mean something on an otherwise idle machine only.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from timing import head, middle_and_range, parser_of, ratios, row, write_json

import trainers.compat  # noqa: F401
from recipes.planning.stream import Stream
from trainers.augmentations import decoders
from trainers.datasets.loader import StreamIterator
from trainers.datasets.loader_workers import LoaderWorkers
from trainers.launch.request import TrainRequest, prepare
from trainers.training.build import build

BATCH, SIZE, TARGET = 32, 224, 6300
WARM = 8  # batches of a turn before its clock starts: what was loaded between turns is used up
Turn = Callable[[], float]  # reads all images once; returns images a second


def generate(root: Path, images: int) -> None:
    """Photo-like JPEGs of two classes: waves of low frequency under noise that is strong in places."""
    random = np.random.RandomState(0)
    for split, number in (("train", images), ("val", 4)):
        for index in range(number):
            height, width = random.randint(330, 420), random.randint(440, 560)
            y, x = np.mgrid[:height, :width].astype(np.float32)
            image = np.empty((height, width, 3), np.float32)
            for channel in range(3):
                a, b, c, d = random.uniform(5, 60, 4)
                image[:, :, channel] = 128 + 60 * np.sin(x / a + y / b) + 40 * np.cos(x / c - y / d)
            strength = 30 * (1 + np.sin(x / 70)) * (1 + np.cos(y / 50)) / 2
            image += strength[:, :, None] * random.standard_normal((height, width, 1)).astype(np.float32)
            path = root / split / f"class{index % 2}" / f"{index:05d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(path, quality=93)


def prepared_on(root: Path) -> Any:
    facts = "name: photos\nchannels: 3\nreader: {kind: ImageFolder}\nroot: .\n"
    (root / "photos.yaml").write_text(facts, encoding="utf-8")
    train = f"[{{kind: RandomResizedCrop, size: {SIZE}}}, {{kind: HorizontalFlip}}]"
    evaluation = f"[{{kind: Resize, shorter: 256}}, {{kind: CenterCrop, size: {SIZE}}}]"
    changes = (
        f"dataset={root / 'photos.yaml'}",
        f"augmentation={{train: {train}, eval: {evaluation}}}",
        f"batch={{global: {BATCH}, norm_span: {BATCH}}}",
        "learning_rate.warmup=null",
        "epochs=1000",
    )
    return prepare(TrainRequest(recipe="digits/large_batch", overrides=changes, exact=False), workers=1)


def on_threads(workers: int, task: Callable[[int], Any], images: int) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        count = sum(1 for _ in pool.map(task, range(images)))
    return count / (time.perf_counter() - began)


def of_batches(batches: Iterator[Any], number: int) -> float:
    """Images a second of so many batches, the first ones not counted."""
    for _ in range(WARM):
        next(batches)
    began = time.perf_counter()
    count = sum(len(next(batches)) for _ in range(number - WARM))
    return count / (time.perf_counter() - began)


def ours(root: Path, workers: int, stack: ExitStack) -> dict[str, Turn]:
    """The lines of kilobatch itself."""
    prepared = prepared_on(root)
    parts = build(prepared.opened.recipe, prepared.opened.dataset)
    samples, images = parts.load_train.samples, len(parts.load_train.samples)

    def whole_loader(family: str) -> Turn:
        stream = Stream(seed=0, num_samples=images, repeats=1)
        workers_of = stack.enter_context(LoaderWorkers(workers))
        iterator = StreamIterator(plan=prepared.plan, rank=0, stream=stream, load=parts.load_pixels, workers=workers_of)

        def batches() -> Iterator[np.ndarray]:
            while True:
                for micro_batch in iterator.next().micro_batches:
                    yield micro_batch.images_NCHW.pixels_HWC

        def turn() -> float:
            decoders.use(family)
            try:
                return of_batches(batches(), images // BATCH)
            finally:
                iterator.finalize()

        return turn

    def with_family(family: str, task: Callable[[int], Any]) -> Turn:
        def turn() -> float:
            decoders.use(family)
            return on_threads(workers, task, images)

        return turn

    family = decoders.in_use()
    lines = {
        "decoder": with_family(family, samples.__getitem__),
        "decode + crop + flip": with_family(family, lambda index: parts.load_pixels(0, index)),
        "kilobatch": whole_loader(family),
    }
    others = [other for other in ("pillow", "nvimgcodec") if other != family and not decoders.missing(other)]
    return lines | {f"kilobatch, {other}": whole_loader(other) for other in others}


def torch_loader(root: Path, workers: int, stack: ExitStack, *, own_decoder: bool) -> Turn:
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    steps = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
    if own_decoder:
        loader, transform = (lambda path: decode_jpeg(read_file(path), ImageReadMode.RGB)), v2.Compose(steps)
    else:
        loader, transform = (lambda path: Image.open(path).convert("RGB")), v2.Compose([*steps, v2.PILToTensor()])
    data = ImageFolder(str(root / "train"), transform=transform, loader=loader)
    batches = DataLoader(
        data,
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    return lambda: of_batches((images for images, _ in batches), len(batches))


def chainercv_loader(root: Path, workers: int, stack: ExitStack) -> Turn:
    from chainer.dataset import DatasetMixin
    from chainer.iterators import MultiprocessIterator
    from chainercv.transforms import random_flip, random_sized_crop, resize
    from chainercv.utils import read_image

    paths = sorted((root / "train").glob("*/*.jpg"))

    class Samples(DatasetMixin):
        def __len__(self) -> int:
            return len(paths)

        def get_example(self, index: int) -> np.ndarray:
            image_CHW = resize(random_sized_crop(read_image(str(paths[index]), dtype=np.uint8)), (SIZE, SIZE))
            return random_flip(image_CHW, x_random=True)

    iterator = MultiprocessIterator(Samples(), BATCH, n_processes=workers, n_prefetch=2, shared_mem=1 << 18)
    stack.callback(iterator.finalize)
    return lambda: of_batches((np.stack(examples) for examples in iterator), len(paths) // BATCH)


def dali_loader(root: Path, workers: int, stack: ExitStack) -> Turn:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=workers, device_id=None, prefetch_queue_depth=2)
    def pipeline() -> Any:
        files, labels = fn.readers.file(file_root=str(root / "train"), random_shuffle=True, name="files")
        images = fn.decoders.image_random_crop(files, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        images = fn.resize(images, resize_x=SIZE, resize_y=SIZE, interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels

    built = pipeline()
    built.build()
    count = len(list((root / "train").glob("*/*.jpg")))
    return lambda: of_batches((built.run()[0].as_array() for _ in iter(int, 1)), count // BATCH)


PEERS: dict[str, Callable[..., Turn]] = {
    "torchvision + Pillow": lambda *given: torch_loader(*given, own_decoder=False),
    "torchvision's decoder": lambda *given: torch_loader(*given, own_decoder=True),
    "ChainerCV": chainercv_loader,
    "DALI": dali_loader,
}


def measure(root: Path, workers: int, rounds: int) -> dict[str, list[float]]:
    """Images a second of each line, in each round."""
    with ExitStack() as stack:
        turns: dict[str, Turn] = {}
        for name, peer in PEERS.items():  # before ours have threads: DataLoader and MultiprocessIterator fork
            try:
                turns[name] = peer(root, workers, stack)
                turns[name]()
            except ImportError as error:
                turns.pop(name, None)
                print(f"left out: {name} ({error})")
        turns = ours(root, workers, stack) | turns
        figures: dict[str, list[float]] = {name: [] for name in turns}
        for number in range(rounds + 1):
            for name in rotated(list(turns), number):
                speed = turns[name]()
                if number:
                    figures[name].append(speed)
        return figures


def rotated(names: list[str], number: int) -> Iterator[str]:
    first = number % len(names)
    yield from (*names[first:], *names[:first])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--images", type=int, default=960, help="JPEGs to generate")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.images < (least := (WARM + 1) * BATCH):
        parser.error(f"--images {options.images}: the clock of a turn starts after {WARM} batches; at least {least}")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), options.images)
        sizes = [path.stat().st_size for path in Path(folder, "train").glob("*/*.jpg")]
        print(f"{len(sizes)} JPEGs of {statistics.mean(sizes) / 1000:.0f} KB, decoders: {decoders.in_use()}\n")
        for workers in options.workers:
            figures = results[workers] = measure(Path(folder), workers, options.rounds)
            print(head([f"{workers} worker(s)", "images/s", "ratio to kilobatch"]))
            for name, each in figures.items():
                ratio = middle_and_range(ratios(each, figures["kilobatch"]))
                print(row([name, f"{statistics.median(each):,.0f}", ratio]))
            cores = TARGET * workers / statistics.median(figures["kilobatch"])
            print(f"\n{TARGET:,} images/s need {cores:.1f} such cores\n", flush=True)
    write_json(options.json, {"images": options.images, "image_bytes": sizes, "images_per_second": results})


if __name__ == "__main__":
    main()
