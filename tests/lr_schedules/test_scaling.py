from lr_schedules import linear_scaling, no_scaling, sqrt_scaling


def test_linear_scaling_is_goyal2017s_rates():
    sizes = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
    assert [0.1 * linear_scaling(size, per=256) for size in sizes] == [
        0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6,
    ]  # fmt: skip


def test_linear_scaling_of_a_batch_that_does_not_divide():
    assert linear_scaling(96, per=64) == 1.5


def test_sqrt_scaling_by_hand():
    assert [sqrt_scaling(size, per=128) for size in (128, 512, 2048, 32)] == [1.0, 2.0, 4.0, 0.5]


def test_no_scaling_leaves_the_rate():
    assert [no_scaling(size, per=256) for size in (1, 256, 65536)] == [1.0, 1.0, 1.0]
