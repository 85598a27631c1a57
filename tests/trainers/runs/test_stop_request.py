"""Who requested a run to stop is printed and recorded."""

from trainers.runs.stop_request import STOP_FILE, StopRequest, request_stop, requester_text


def test_a_run_knows_whether_a_user_a_search_or_a_signal_made_its_stop_file(tmp_path):
    request = StopRequest(tmp_path, watches_file=True)
    try:
        file = tmp_path / STOP_FILE
        assert not request()
        for who in ("signal", "search"):
            request_stop(file, who)
            assert request()
            assert request.by == who
        for text in ("", "please\n", "\u00e9"):
            file.write_text(text)
            assert request.by == "stop file"
    finally:
        request.close()
    assert (requester_text("signal", file), requester_text("stop file", file)) == ("a signal", f"the file {file}")
