"""Connections of the development server: how many there are, and how long the head of a request may take."""

import asyncio
from typing import Any


def bounded_protocol(base: Any, connections: int, seconds: float, too_late: bytes) -> type:
    """Return a protocol of uvicorn that bounds connections and the time of heads."""
    most = min(connections, max(_max_open_files() // 2, 1))

    class Protocol(base):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            else:
                self._time_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._time_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.trailing_data[0]:  # of the next request
                self._time_head()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            self._stop_timer()

        def _time_head(self) -> None:
            """Let the timer run while the head of a request is incomplete. A complete one has a cycle."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_timer()
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self._refuse)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self) -> None:
            if self.conn.trailing_data[0]:
                head = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\n"
                self.transport.write(f"{head}Content-Length: {len(too_late)}\r\n\r\n".encode() + too_late)
            self.transport.close()

    return Protocol


def _max_open_files() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 1024
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**20 if limit == resource.RLIM_INFINITY else limit
