"""Each patch cures the symptom in its docstring."""

import subprocess
import sys
import types
import warnings

import chainer
import chainer.functions as F
import chainercv
import chainermn.communicators._memory_utility as memory_utility
import numpy
import pytest

from trainers import compat
from trainers.compat import stand_ins


def run_python(program):
    return subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)


def test_importing_trainers_loads_neither_chainer_nor_numpy():
    done = run_python("import sys, trainers; assert not {'chainer', 'chainermn', 'mpi4py', 'numpy'} & set(sys.modules)")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["trainers, chainer", "kilobatch, chainermn"])
def test_import_without_a_warning_and_without_stand_ins_left_behind(first):
    done = run_python(
        f"import sys, {first}, chainer, chainermn, chainercv\n"
        "assert not {'distutils', 'pkg_resources'} & set(sys.modules)"
    )
    assert done.returncode == 0, done.stderr


def test_scipy_is_loaded_by_what_computes_with_it():
    done = run_python(
        "import sys, trainers, chainer, numpy\n"
        "assert 'scipy' not in sys.modules\n"
        "import chainer.functions as F\n"
        "x = numpy.array([0.25, 0.5], numpy.float32)\n"
        "numpy.testing.assert_allclose(F.erf(F.erfinv(x)).array, x, rtol=1e-6)\n"
        "numpy.testing.assert_allclose(F.ndtr(F.ndtri(x)).array, x, rtol=1e-6)\n"
        "numpy.testing.assert_allclose(F.erfc(F.erfcinv(x)).array, x, rtol=1e-6)\n"
        "identity = chainer.utils.to_coo(numpy.eye(2, dtype=numpy.float32))\n"
        "assert F.sparse_matmul(identity, numpy.ones((2, 2), numpy.float32)).array.tolist() == [[1, 1], [1, 1]]\n"
        "chainer.distributions.MultivariateNormal(x, scale_tril=numpy.eye(2, dtype=numpy.float32)).sample()\n"
        "assert chainer.datasets.svhn.io.loadmat is sys.modules['scipy.io'].loadmat\n"
        "assert sys.modules['scipy'].__version__"
    )
    assert done.returncode == 0, done.stderr


def test_chainer_does_not_import_without_the_patches():
    done = run_python("import chainer")
    assert "AttributeError: `np.sctypes` was removed" in done.stderr or "numpy.distutils" in done.stderr


def test_second_install_changes_nothing():
    before = list(sys.meta_path)
    compat.install()
    assert sys.meta_path == before


def test_table_names_every_patch_with_its_symptom():
    rows = compat.patches()
    assert len({(row.name, row.module) for row in rows}) == len(rows) == 25
    assert all(len(row.symptom) > 20 for row in rows)
    states = {row.name: row.state for row in rows}
    assert states["environment_check"] == "applied"
    assert set(states.values()) <= {"applied", "not needed", "not imported yet"}


def test_patch_of_a_module_imported_before_install_is_applied_at_once():
    module = types.ModuleType("late_module")
    sys.modules["late_module"] = module
    patch = compat.import_hook.After("late_module", lambda module: setattr(module, "patched", True) or True)
    hook = compat.import_hook.ImportHook([patch])
    try:
        hook.install()
        assert module.patched
    finally:
        sys.meta_path.remove(hook)
        del sys.modules["late_module"]


def test_as_strided_knows_numpys_types():
    x = chainer.Variable(numpy.arange(6, dtype=numpy.float32))
    y = F.as_strided(x, (2, 3), (1, 1))
    F.sum(y).backward()
    assert x.grad.tolist() == [1, 2, 2, 1, 0, 0]


def test_resize_images_interpolates():
    image = numpy.array([[[[0.0, 2.0]]]], numpy.float32)
    assert F.resize_images(image, (1, 3), align_corners=True).array.ravel().tolist() == [0, 1, 2]


def test_numpy_int_is_python_int():
    assert numpy.array([1.5]).astype(numpy.int).dtype == numpy.int64


def test_chainercv_knows_its_version():
    assert chainercv.__version__ == "0.13.1"


def test_strtobool_reads_the_words_of_distutils():
    from chainercv.utils.download import strtobool

    assert [strtobool(word) for word in ("Yes", "1", "off", "0")] == [1, 1, 0, 0]
    with pytest.raises(ValueError, match="maybe"):
        strtobool("maybe")


def test_deconvolution_takes_a_gradient_for_its_weights_only():
    x = numpy.ones((1, 1, 2, 2), numpy.float32)
    W = chainer.Variable(numpy.ones((1, 1, 2, 2), numpy.float32))
    F.sum(F.deconvolution_2d(x, W)).backward()
    assert W.grad.ravel().tolist() == [4, 4, 4, 4]


def test_categorical_log_probability_and_divergence():
    p = numpy.array([[0.5, 0.5], [0.25, 0.75]], numpy.float32)
    distribution = chainer.distributions.Categorical(p)
    log_probability = distribution.log_prob(numpy.array([0, 1])).array
    numpy.testing.assert_allclose(numpy.exp(log_probability), [0.5, 0.75], rtol=1e-6)
    of_a_variable = distribution.log_prob(chainer.Variable(numpy.array([[0, 0], [1, 1]])))
    numpy.testing.assert_allclose(numpy.exp(of_a_variable.array), [[0.5, 0.25], [0.5, 0.75]], rtol=1e-6)
    assert chainer.kl_divergence(distribution, distribution).array.tolist() == [0, 0]


def test_pad_sequence_wraps_minus_one_in_unsigned_types():
    sequences = [numpy.array([1, 2, 3], numpy.uint8), numpy.array([4], numpy.uint8)]
    assert F.pad_sequence(sequences, padding=-1).array.tolist() == [[1, 2, 3], [4, 255, 255]]
    floats = [numpy.zeros(1, numpy.float32), numpy.zeros(2, numpy.float32)]
    assert F.pad_sequence(floats, padding=0.5).array.tolist() == [[0, 0.5], [0, 0]]


def test_examples_of_several_shapes_are_concatenated_with_padding():
    batch = [numpy.ones(shape, numpy.float32) for shape in ((1, 3), (2, 1))]
    padded = chainer.dataset.concat_examples(batch, padding=-1)
    assert padded.tolist() == [[[1, 1, 1], [-1, -1, -1]], [[1, -1, -1], [1, -1, -1]]]
    assert padded.dtype == numpy.float32
    pairs = [(numpy.arange(size), size) for size in (1, 2)]  # the second of each has no axes
    assert [each.tolist() for each in chainer.dataset.concat_examples(pairs, padding=0)] == [[[0, 0], [0, 1]], [1, 2]]


def test_debug_print_has_cpu_in_capitals():
    assert "- device: CPU\n" in chainer.Variable(numpy.zeros(2, numpy.float32)).debug_print()


@pytest.mark.parametrize("num_boxes", [1, 63, 64, 65, 200])
def test_nms_stand_in_selects_what_the_cpu_path_selects(num_boxes):
    random = numpy.random.default_rng(num_boxes)
    corner = random.uniform(0, 5, (num_boxes, 2))
    boxes = numpy.hstack([corner, corner + random.uniform(1, 4, (num_boxes, 2))]).astype(numpy.float32)
    overlap = chainercv.utils.bbox_iou(boxes, boxes) >= 0.5
    num_words = -(-num_boxes // 64)
    mask = numpy.zeros((num_boxes, num_words), numpy.uint64)
    for box, other in zip(*numpy.nonzero(numpy.triu(overlap, k=1)), strict=True):
        mask[box, other // 64] |= numpy.uint64(1) << numpy.uint64(other % 64)
    selection, num_selected = stand_ins.select_boxes(mask.ravel(), num_boxes, 64, num_words)
    expected = chainercv.utils.non_maximum_suppression(boxes, 0.5)
    assert selection[:num_selected].tolist() == expected.tolist()


@pytest.mark.parametrize("wire", ["float16", "float32", "float64"])
def test_parameters_are_unpacked_from_another_type_on_the_wire(wire):
    class Buffer:
        """The part of DeviceMemory that unpack_params uses, on the CPU."""

        content = numpy.arange(5).astype(wire).tobytes()

        def to_device(self, destination, num_bytes, offset, stream):
            values = numpy.frombuffer(self.content[offset : offset + num_bytes], destination.dtype)
            destination[...] = values.reshape(destination.shape)

    parameters = [chainer.Parameter(numpy.zeros(shape, numpy.float32)) for shape in ((1, 2), (3,))]
    for parameter in parameters:
        parameter.cleargrad()
    memory_utility.unpack_params(parameters, "grad", Buffer(), numpy.dtype(wire), zero_fill=True)
    assert [parameter.grad.tolist() for parameter in parameters] == [[[0, 1]], [2, 3, 4]]
    assert {parameter.grad.dtype for parameter in parameters} == {numpy.dtype("float32")}


def test_chainer_testing_still_reaches_the_real_pkg_resources():
    from chainer.testing import helper

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own announcement of its end
        assert helper.pkg_resources.WorkingSet().by_key["chainer"].version == "7.8.1"
