"""The option `--no-skips`: a skipped test is a failure."""

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--no-skips", action="store_true", help="Fail if a test was skipped, as continuous integration does."
    )


def pytest_terminal_summary(terminalreporter, config):
    skipped = terminalreporter.stats.get("skipped", [])
    if config.getoption("--no-skips") and skipped:
        terminalreporter.section("skipped, although --no-skips was given")
        for report in skipped:
            terminalreporter.write_line(f"{report.nodeid}: {report.longrepr[2]}")
        terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED
