"""Takes vLLM's place where a test starts, kills and restarts servers: up at once, real otherwise.

Found before the real package by PYTHONPATH. In its environment STUB_FACTS has what
`arise_describe` reports, and STUB_STARTS names a file that gets a line a start.
"""

import json
import os
import sys
from pathlib import Path

from aiohttp import web

from stub_vllm import StubState, make_app

if __name__ == "__main__":
    with Path(os.environ["STUB_STARTS"]).open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    print("the stub is starting", flush=True)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    state = StubState(json.loads(os.environ["STUB_FACTS"]))
    web.run_app(make_app(state), host="127.0.0.1", port=port, print=None, access_log=None)
