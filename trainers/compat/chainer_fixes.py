"""Patches for what NumPy 2 and CuPy 14 break in Chainer after its import, and for one old bug of Chainer 7.8.1."""

from __future__ import annotations

from types import ModuleType

from trainers.compat.import_hook import After


def deconvolution_cover_all(module: ModuleType) -> bool:
    """Lets `Deconvolution2DFunction._set_cover_all` take arrays and variables as well as their shapes.

    Symptom: ValueError or TypeError in the backward of F.deconvolution_2d when only the weights need a gradient: it
    passes variables where shapes are expected.
    """
    function = module.Deconvolution2DFunction
    original = function._set_cover_all

    def set_cover_all(self, x, W):
        original(self, getattr(x, "shape", x), getattr(W, "shape", W))

    function._set_cover_all = set_cover_all
    return True


def categorical_log_prob(module: ModuleType) -> bool:
    """Indexes with a tuple of arrays, whatever `numpy.meshgrid` returns.

    Symptom: TypeError: can only concatenate tuple (not "list") to tuple (distributions.Categorical.log_prob,
    and with it its Kullback-Leibler divergence).
    """

    def log_prob(self, x):
        grid = module.numpy.meshgrid(*(range(size) for size in self.batch_shape), indexing="ij")
        chosen = module.chainer.as_array(x).astype(module.numpy.int32)
        return self.log_p[(*grid, chosen)]

    module.Categorical.log_prob = log_prob
    return True


def pad_sequence_unsigned(module: ModuleType) -> bool:
    """Casts the padding to the sequences' type as NumPy 1 did: -1 in uint8 is 255.

    Symptom: OverflowError: Python integer -1 out of bounds for uint8 (F.pad_sequence with padding=-1).
    """
    function = module.PadSequence
    original = function.forward

    def forward(self, xs):
        self.padding = module.numpy.asarray(self.padding).astype(xs[0].dtype)[()]
        return original(self, xs)

    function.forward = forward
    return True


def concat_with_padding(module: ModuleType) -> bool:
    """Computes the padded shape without a third positional argument of `numpy.maximum`.

    Symptom: DeprecationWarning: Passing more than 2 positional arguments to np.maximum and np.minimum is deprecated
    (chainer.dataset.concat_examples with a padding, NumPy 2.4).
    """

    def concatenated(arrays, padding):
        numpy, backend = module.numpy, module.backend
        shape = (len(arrays), *numpy.max([array.shape for array in arrays], axis=0))
        device = backend.get_device_from_array(arrays[0])
        with module.chainer.using_device(device):
            result = device.xp.full(shape, padding, dtype=arrays[0].dtype)
            for number, array in enumerate(arrays):
                result[(number, *map(slice, array.shape))] = array
        return result

    module._concat_arrays_with_padding = concatenated
    return True


def debug_print_device(module: ModuleType) -> bool:
    """Writes the device of a NumPy array as Chainer did before NumPy's arrays had a `device`.

    Symptom: Variable.debug_print prints "device: cpu", its documentation has "device: CPU".
    """
    original = module.Variable.debug_print

    def debug_print(self):
        return original(self).replace("\n- device: cpu\n", "\n- device: CPU\n")

    module.Variable.debug_print = debug_print
    return hasattr(module.numpy.ndarray, "device")


def cudnn_is_gone(module: ModuleType) -> bool:
    """Makes Chainer treat a CuPy without cuDNN as if the user had disabled cuDNN: convolutions use im2col, silently.

    Of what Chainer needs, CuPy 14 lacks only `cupy.cudnn` and `cupy.cuda.cudnn`. `trainers.kernels` compute instead; a
    run's log says which.

    Symptom: UserWarning: cuDNN is not enabled. Please reinstall CuPy after you install cudnn (at the first array on a
    GPU, with CuPy 14, for which there is no cuDNN to install).
    """
    gone = module.available and not module.cudnn_enabled
    if gone:
        module._cudnn_disabled_by_user = True
        module.cudnn = None
    return gone


PATCHES = (
    After("chainer.functions.connection.deconvolution_2d", deconvolution_cover_all),
    After("chainer.distributions.categorical", categorical_log_prob),
    After("chainer.functions.array.pad_sequence", pad_sequence_unsigned),
    After("chainer.dataset.convert", concat_with_padding),
    After("chainer.variable", debug_print_device),
    After("chainer.backends.cuda", cudnn_is_gone),
)
