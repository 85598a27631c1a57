"""Chosen plans outlive the process, and no broken file stops a run."""

from trainers.kernels.cuda.tuned_plans import TunedPlans


def test_a_plan_is_found_again_for_its_operation_gpu_and_version(tmp_path):
    TunedPlans("NVIDIA H200 9.19", tmp_path).keep("forward e (64, 3, 8, 8)", 4)
    again = TunedPlans("NVIDIA H200 9.19", tmp_path)
    assert again.find("forward e (64, 3, 8, 8)") == 4
    assert again.find("data e (64, 3, 8, 8)") is None
    assert TunedPlans("NVIDIA H200 9.20", tmp_path).find("forward e (64, 3, 8, 8)") is None
    again.keep("forward e (64, 3, 8, 8)", 2)
    assert TunedPlans("NVIDIA H200 9.19", tmp_path).find("forward e (64, 3, 8, 8)") == 2


def test_broken_lines_are_passed_over(tmp_path):
    TunedPlans("gpu", tmp_path).keep("one", 1)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + b"two\tx\n\xff\xfe\nthree\t3\nfour\t")
    known = TunedPlans("gpu", tmp_path)
    assert [known.find(word) for word in ("one", "two", "three", "four")] == [1, None, 3, None]


def test_without_a_folder_plans_are_known_in_this_process(tmp_path):
    (tmp_path / "file").touch()
    plans = TunedPlans("gpu", tmp_path / "file")
    plans.keep("one", 1)
    assert plans.find("one") == 1
