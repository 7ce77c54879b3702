"""Every promise of `aenv.engines.protocol` as a test.

pytest -p aenv.testing.engine_plugin --pyargs aenv.testing.engine_suite --engine my_package:MyEngine
"""

from __future__ import annotations

# The tests of each part are tests of this module: pytest collects what it finds here.
from aenv.testing.engine_checks.cancelling import *  # noqa: F403
from aenv.testing.engine_checks.endings import *  # noqa: F403
from aenv.testing.engine_checks.execution import *  # noqa: F403
from aenv.testing.engine_checks.forking import *  # noqa: F403
from aenv.testing.engine_checks.identity import *  # noqa: F403
from aenv.testing.engine_checks.lifecycle import *  # noqa: F403
from aenv.testing.engine_checks.limits import *  # noqa: F403
from aenv.testing.engine_checks.logs import *  # noqa: F403
from aenv.testing.engine_checks.sharing import *  # noqa: F403
from aenv.testing.engine_checks.storms import *  # noqa: F403
from aenv.testing.engine_checks.warming import *  # noqa: F403
