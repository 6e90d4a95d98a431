"""A fleet with one router to verify: what is registered there, and what the log says, are both up to the test."""

from __future__ import annotations

from contextlib import asynccontextmanager

from support.core import TIME
from support.nats import DEADLINE
from support.until import until

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.demo.worker import DemoWorker
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.proxies.opening import open_proxies
from rollbook.adapters.settings import load
from rollbook.adapters.verify import Ask, Verifier, doors
from rollbook.events import Codec
from rollbook.projections.log.catchup import state_now
from rollbook.projections.ports import Done, Pending, Target

W, OTHER, STRANGER = "rollout-0-0", "rollout-1-0", "stranger-0-0"


class Site:
    """The fleet. `url` is where clients of the router send their requests."""

    def __init__(self, folder, client, fleet, url):
        self.folder = folder
        self.fleet = fleet
        self.url = url
        self.log = JetStreamLog(client, fleet)
        self.workers = []
        self.addresses = {}

    def configure(self, nats, router, kind="sglang", more=""):
        tables = "".join(
            f'[provider.workers.{name}]\nprimary = "{address}"\n' for name, address in self.addresses.items()
        )
        (self.folder / "rollbook.toml").write_text(
            f'fleet = "{self.fleet}"\n[nats]\nurl = "{nats}"\n[provider]\nkind = "static"\n{tables}[pools.rollout]\n'
            f'[[proxies]]\nname = "router-a"\nkind = "{kind}"\nadmin_url = "{router}"\npools = ["rollout"]\n{more}'
        )

    async def worker(self, name, incarnation=1):
        worker = DemoWorker(name=name, incarnation=incarnation)
        self.workers.append(worker)
        self.addresses[name] = (await worker.start())["primary"]
        return f"http://{self.addresses[name]}"

    async def say(self, *facts):
        for fact in facts:
            draft = Codec(self.fleet).draft(fact, id=UuidV7().new(), time=TIME, publisher="test")
            await self.log.append([draft])

    @property
    def config(self):
        return load(None, environ={}, cwd=self.folder)

    @asynccontextmanager
    async def proxy(self):
        async with open_proxies(self.config.settings, environ={}, base=self.folder) as proxies:
            yield proxies["router-a"]

    async def register(self, name, url, incarnation=1):
        """Put an entry of ours into the router, whatever the log says."""
        async with self.proxy() as proxy:
            answer = await proxy.add(Target(worker=name, incarnation=incarnation, url=url))
            assert isinstance(answer, Pending | Done), answer
            await until(proxy.list, lambda listing: any(entry.url == url for entry in listing.entries))

    async def verify(self, provider=None, router=None, **ask):
        """`router` stands in for the configured one."""
        state = await state_now(self.log, _NoSnapshots(), Codec(self.fleet), SystemClock())
        async with open_proxies(self.config.settings, environ={}, base=self.folder) as proxies:
            verifier = Verifier(
                self.config.settings.policy(),
                lambda: state,
                proxies=proxies if router is None else {"router-a": router},
                doors=doors(self.config.settings, environ={}, base=self.folder),
                provider=provider,
                admission=None,
                clock=SystemClock(),
            )
            return (await verifier.verify(["router-a"], Ask(**ask))).proxies[0]


class _NoSnapshots:
    async def newest_first(self):
        for nothing in ():
            yield nothing


@asynccontextmanager
async def site_at(folder, client, fleet, url, *configuration, **more):
    """One whose configuration is as `Site.configure` takes it; its router is empty at the end."""
    await provision(client, fleet, timeout=DEADLINE)
    site = Site(folder, client, fleet, url)
    site.configure(*configuration, **more)
    try:
        yield site
    finally:
        async with site.proxy() as proxy:
            for entry in (await proxy.list()).entries:
                await proxy.remove(entry)
            await until(proxy.list, lambda listing: not listing.entries)
        for worker in site.workers:
            await worker.stop()


def verdicts(found):
    return {one.worker: (one.verdict, one.how) for one in found.answered}
