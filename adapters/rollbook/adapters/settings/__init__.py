"""Settings: one TOML file, overrides from the environment, frozen structs.

Belongs here: what can be configured, how it is found, read, checked and explained. Never here: anything that acts on
it; and nothing is read when the package is imported. `load` is called once, by whoever puts a program together.
"""

from rollbook.adapters.secret_ref import SecretRef
from rollbook.adapters.settings.checks import refuse_unreachable_log
from rollbook.adapters.settings.errors import ConfigError
from rollbook.adapters.settings.load import FILE_NAME, Client, Config, load, load_client, read_secret
from rollbook.adapters.settings.model import (
    ClientSettings,
    LeadershipSettings,
    LogSettings,
    NatsSettings,
    ProxySettings,
    RayActorsProvider,
    RayProvider,
    Settings,
    StaticProvider,
    WebSettings,
)

__all__ = [
    "FILE_NAME",
    "Client",
    "ClientSettings",
    "Config",
    "ConfigError",
    "LeadershipSettings",
    "LogSettings",
    "NatsSettings",
    "ProxySettings",
    "RayActorsProvider",
    "RayProvider",
    "SecretRef",
    "Settings",
    "StaticProvider",
    "WebSettings",
    "load",
    "load_client",
    "read_secret",
    "refuse_unreachable_log",
]
