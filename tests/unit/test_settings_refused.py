"""Every wrong configuration gets one line that says where, what and what to write instead; all lines come at once."""

import pytest
from support.configured import GOOD, changed, problems, read

from rollbook.adapters.proxies.registry import kind_names


def reason(kind, name, letter):
    return f"{name!r} cannot name a {kind}: {letter!r} is not allowed; use letters, digits, '_' and '-'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "flet = 1\n" + GOOD,
            ["flet: unknown key; did you mean 'fleet'?"],
        ),
        (
            changed("admin_url", "admin_uri"),
            [
                "proxies[0].admin_uri: unknown key; did you mean 'admin_url'?",
                'proxies[0].admin_url: is missing; write admin_url = "http://host:port"; it has no default',
            ],
        ),
        (
            GOOD + "[logs]\nzzz = 1",
            ["logs.zzz: unknown key; known here: format, level"],
        ),
        (
            GOOD.replace('admin_url = "http://127.0.0.1:30000"\n', ""),
            ['proxies[0].admin_url: is missing; write admin_url = "http://host:port"; it has no default'],
        ),
        (
            GOOD + 'api_key = "hunter2"',
            ['proxies[0].api_key: a secret in clear: change it, and write { env = "NAME" } or { file = "path" }'],
        ),
        (
            GOOD + 'api_key = { env = "A", file = "b" }',
            ['proxies[0].api_key: needs exactly one of { env = "NAME" } and { file = "path" }'],
        ),
        (
            GOOD + 'api_key = { env = "sk-hunter2" }',
            ["proxies[0].api_key.env: is no variable's name; is it the secret itself?"],
        ),
        (
            changed('url = "nats', 'creds = "-----BEGIN NATS USER JWT-----"\nurl = "nats'),
            ["nats.creds: a secret in clear: change it, and name the file that holds it"],
        ),
        (
            changed("nats://127", "nats://me:hunter2@127"),
            [
                (
                    "nats.url: credentials do not belong in a URL; write nats://host:4222, and a token into "
                    "ROLLBOOK_NATS_TOKEN or the secret that nats.token refers to (likewise ROLLBOOK_NATS_USER and "
                    "ROLLBOOK_NATS_PASSWORD)"
                ),
            ],
        ),
        (
            changed("http://127", "http://me:hun/ter2@127"),
            ["proxies[0].admin_url: not a usable URL; write it as http://host:port"],
        ),
        (
            changed("http://127", "me:hunter2@127"),
            ["proxies[0].admin_url: credentials do not belong in a URL; write http://host:port and a secret reference"],
        ),
        (
            changed('"http://127.0.0.1:30000"', '"127.0.0.1:30000"'),
            ["proxies[0].admin_url: '127.0.0.1:30000' has no scheme that fits; write it as http://host:port"],
        ),
        (
            changed('"http://127.0.0.1:30000"', '"http://:30000"'),
            ["proxies[0].admin_url: 'http://:30000' names no usable host and port; write it as http://host:port"],
        ),
        (
            changed("nats://127.0.0.1:4222", "nats://127.0.0.1:4222,http://b:4222"),
            ["nats.url: 'http://b:4222' has no scheme that fits; write it as nats://host:4222"],
        ),
        (
            GOOD + '[[proxies]]\nname = "router-a"\nkind = "sglang"\nadmin_url = "http://b:1"\npools = ["rollout"]',
            ["proxies[1].name: 'router-a' is the name of proxies[0] already; choose another"],
        ),
        (
            GOOD
            + '[[proxies]]\nname = "b"\nkind = "sglang"\nadmin_url = "http://127.0.0.1:30000/"\npools = ["rollout"]',
            ["proxies[1].admin_url: is the router of proxies[0] already; one table with all its pools is enough"],
        ),
        (
            GOOD + "[pools.prefill]",
            ["pools.prefill: requires a proxy and none serves it; name it in a proxy or set requires_proxy = false"],
        ),
        (
            GOOD + "[pools.rolout.health]\ninterval = 1",
            [
                (
                    "pools.rolout: requires a proxy and none serves it; did you mean 'rollout', which one serves? "
                    "Otherwise name it in a proxy or set requires_proxy = false"
                )
            ],
        ),
        (
            changed('kind = "ray"', 'kind = "ray"\naddress = "http://127.0.0.1:8265"'),
            [
                (
                    "provider.address: is a URL, of Ray's dashboard perhaps; write host:port of the cluster's head, "
                    "such as 10.0.0.1:6379"
                )
            ],
        ),
        (
            changed('["rollout"]', '["rollout", "rolout"]'),
            ["proxies[0].pools: 'rolout' is not declared; did you mean 'rollout'?"],
        ),
        (
            changed("[pools.rollout]\n", ""),
            ["proxies[0].pools: 'rollout' is not declared; add [pools.rollout]"],
        ),
        (
            changed('["rollout"]', "[]"),
            [
                "proxies[0].pools: names no pool, so the proxy would serve nothing; name at least one",
            ],
        ),
        (
            changed('kind = "ray"', 'kind = "k8s"'),
            ['provider.kind: the string "k8s" where "ray" or "ray-actors" or "static" is needed'],
        ),
        (
            changed('kind = "ray"', 'kind = "ray-actors"'),
            ['provider.actor: is missing; write actor = "engine-{worker}"'],
        ),
        (
            changed('kind = "ray"', 'kind = "ray-actors"\nactor = "engine"\nmethod = "get addr"'),
            [
                (
                    "provider.actor: 'engine' is no name of each worker's actor; write it with {worker}, as in "
                    "engine-{worker}, or with {cell} and, where they are told, {pool} and {rank}"
                ),
                "provider.method: 'get addr' is no method's name",
            ],
        ),
        (
            changed('kind = "ray"', 'kind = "ray-actors"\nactor = "server_{cell}_{rank}"'),
            ["provider.pool: is missing: 'server_{cell}_{rank}' does not say of which pool the workers are"],
        ),
        (
            changed('kind = "ray"', 'kind = "ray-actors"\nactor = "engine-{worker}"\npool = "rollout"'),
            ["provider.pool: has no meaning with 'engine-{worker}', which says it"],
        ),
        (
            changed(
                'kind = "ray"', 'kind = "static"\nfile = "w.toml"\n[provider.workers.rollout-0-0]\nprimary = "h:80"'
            ),
            ["provider.file: is given together with workers; addresses stand here or there"],
        ),
        (
            changed('kind = "ray"', ""),
            ['provider.kind: is missing; write "ray" or "ray-actors" or "static"'],
        ),
        (
            changed('[provider]\nkind = "ray"\n', ""),
            ['provider: is missing; write [provider] with kind = "ray", kind = "ray-actors" or kind = "static"'],
        ),
        (
            changed('kind = "sglang"', 'kind = "nginx"'),
            [f"proxies[0].kind: there is no kind 'nginx'; known here: {', '.join(kind_names())}"],
        ),
        (
            changed('kind = "sglang"', 'kind = "sglan"'),
            ["proxies[0].kind: there is no kind 'sglan'; did you mean 'sglang'?"],
        ),
        (
            changed('fleet = "math-rl"', 'fleet = "math.rl"'),
            ["fleet: 'math.rl' cannot name a fleet: '.' is not allowed; use letters, digits, '_' and '-'"],
        ),
        (
            changed('fleet = "math-rl"', ""),
            ['fleet: is missing; write fleet = "math-rl"'],
        ),
        (
            changed('fleet = "math-rl"', "fleet = 7"),
            ["fleet: the number 7 where a string is needed"],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout]\nrequires_proxy = "yes"'),
            ['pools.rollout.requires_proxy: the string "yes" where true or false is needed'],
        ),
        (
            changed('["rollout"]', '"rollout"'),
            ['proxies[0].pools: the string "rollout" where a list of strings is needed'],
        ),
        (
            changed("[pools.rollout]", '[pools]\nrollout = "x"'),
            ['pools.rollout: the string "x" where a table is needed'],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout]\n[pools."a b"]\nrequires_proxy = false'),
            ["pools.\"a b\": 'a b' cannot name a pool: ' ' is not allowed; use letters, digits, '_' and '-'"],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout]\nurl = "http://{primary"'),
            ["pools.rollout.url: not a usable template; write it as http://{primary}"],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout]\nurl = "http://worker:8000"'),
            [
                "pools.rollout.url: must name an address of the worker in braces, as in http://{primary}",
            ],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout]\nready_path = "health"'),
            ["pools.rollout.ready_path: 'health' is not a path; write /health, or '' to ask nothing"],
        ),
        (
            GOOD + "[reconcile]\nresync = 0\ncall_deadline = nan\nremovals_in_flight = 1.5",
            [
                "reconcile.resync: 0.0 is not usable; write a number above 0",
                "reconcile.call_deadline: nan is not usable; write a number above 0",
                "reconcile.removals_in_flight: the number 1.5 where a whole number is needed",
            ],
        ),
        (
            GOOD + "call_deadline = 4\n[leadership]\nlease = 4.5",
            [
                (
                    "reconcile.call_deadline: is 3 s; no call may outlast a lease of 4.5 s. Write at most 2.7, or "
                    "raise leadership.lease to 5"
                ),
                (
                    "proxies[0].call_deadline: is 4 s; no call may outlast a lease of 4.5 s. Write at most 2.7, or "
                    "raise leadership.lease to 6.66667"
                ),
            ],
        ),
        (
            changed("[nats]", "[leadership]\nlease = 0.5\n[nats]\nreplicas = 6"),
            [
                "nats.replicas: 6 is not usable; write a number from 1 to 5",
                "leadership.lease: 0.5 is not usable; write from 1 to 3600 seconds",
            ],
        ),
        (
            changed('url = "nats://127.0.0.1:4222"', "replicas = 3"),
            ["nats.replicas: has no meaning without nats.url: the embedded server is one server"],
        ),
        (
            GOOD + "[reconcile]\nbackoff_first = 20",
            ["reconcile.backoff_first: is longer than backoff_most; the first delay is the shortest"],
        ),
        (
            GOOD + "[pools.rollout.recovery]\nclaim = 1e12",
            ["pools.rollout.recovery.claim: 1e+12 is not usable; write seconds from 1 to 604800 (a week)"],
        ),
        (
            GOOD + "[pools.rollout.recovery]\nclaim = 0.5",
            ["pools.rollout.recovery.claim: 0.5 is not usable; write seconds from 1 to 604800 (a week)"],
        ),
        (
            GOOD + "[pools.rollout.recovery]\nwindow = 900",
            [
                (
                    "pools.rollout.recovery.window: is 900 s; 5 restarts that hang take up to 3310 s with the pauses "
                    "between them, and would go on for ever. Write at least 3310, or a shorter claim"
                ),
            ],
        ),
        (
            GOOD + "[pools.rollout.recovery]\nclaim = 10\nbackoff_first = 60\nwindow = 300",
            [
                (
                    "pools.rollout.recovery.window: is 300 s; 5 restarts that hang take up to 433 s with the pauses "
                    "between them, and would go on for ever. Write at least 433, or a shorter claim"
                ),
            ],
        ),
        (
            GOOD + "[pools.rollout.recovery]\nbackoff_first = 200",
            ["pools.rollout.recovery.backoff_first: is longer than backoff_most; the first delay is the shortest"],
        ),
        (
            changed('url = "nats://127.0.0.1:4222"', 'token = { env = "T" }'),
            ["nats.token: has no meaning without nats.url: the embedded server makes its own credentials"],
        ),
        (
            changed("[provider]", 'creds = "a.creds"\ntoken = { env = "T" }\n[provider]'),
            ["nats.creds: is given together with token; a server asks for one of them"],
        ),
        (
            changed('kind = "ray"', 'kind = "static"\n[provider.workers."a.b"]\nprimary = "h"\n[provider.workers.c]'),
            [
                f"""provider.workers."a.b": {reason("worker", "a.b", ".")}""",
                'provider.workers."a.b".primary: it has no port; write host:port',
                'provider.workers.c: has no primary address; add primary = "host:port"',
            ],
        ),
        (
            changed("[provider]", "[provider]\nworkers = {}"),
            ["provider.workers: unknown key; known here: kind, manager, namespace, address"],
        ),
        (
            GOOD + "[logs]\nlevel = 5",
            [
                'logs.level: the number 5 where "debug" or "error" or "info" or "warning" is needed',
            ],
        ),
        (
            GOOD + 'call_deadline = 0\nremoval_budget = 1.5\ndrain_deadline = "long"\nexclusive = 1',
            [
                "proxies[0].call_deadline: 0.0 is not usable; write a number above 0",
                "proxies[0].exclusive: the number 1 where true or false is needed",
                "proxies[0].removal_budget: 1.5 is not usable; write a number from 0 to 1",
                'proxies[0].drain_deadline: the string "long" where a number is needed',
            ],
        ),
        (
            GOOD + "removal_budget = nan",
            ["proxies[0].removal_budget: nan is not usable; write a number from 0 to 1"],
        ),
        (
            GOOD + 'data_url = "h:1"',
            ["proxies[0].data_url: 'h:1' has no scheme that fits; write it as http://host:port"],
        ),
        (
            GOOD + 'ca = "ca.pem"\ncertificate_key = "key.pem"',
            [
                "proxies[0].certificate_key: is given without certificate",
                "proxies[0].ca: has no meaning without https:// in admin_url or data_url",
            ],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout]\nrole = "prefill"'),
            [
                (
                    "pools.rollout.bootstrap: is missing: proxies of kind 'sglang' must be told where decode workers "
                    "fetch from; name the worker's address that has that port"
                ),
            ],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout]\nbootstrap = "kv"\nrole = "decode"'),
            ['pools.rollout.bootstrap: has a meaning for role = "prefill" only'],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout]\nrole = "prefil"\nbootstrap = "a b"\nmodel = ""'),
            [
                'pools.rollout.role: the string "prefil" where "decode" or "prefill" or "regular" is needed',
                (
                    "pools.rollout.bootstrap: 'a b' cannot name an address; use letters, digits and '_', as a pool's "
                    "url needs it"
                ),
                "pools.rollout.model: is empty",
            ],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout]\npaired_with = "rolout"\nmax_lag = -1\nstale = "drop"'),
            [
                "pools.rollout.max_lag: -1 is not usable; write 0 or more",
                'pools.rollout.stale: the string "drop" where "keep" or "remove" or "replace" is needed',
                "pools.rollout.paired_with: 'rolout' is not declared; did you mean 'rollout'?",
            ],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout]\npaired_with = "rollout"'),
            ["pools.rollout.paired_with: names the pool itself; a pair is two pools"],
        ),
        (
            changed(
                "[pools.rollout]", '[pools.decode]\nrequires_proxy = false\n[pools.rollout]\npaired_with = "decode"'
            ),
            [
                (
                    "pools.rollout.paired_with: router-a serves one of the two only, and would never be given it; add "
                    "'decode' to its pools"
                ),
            ],
        ),
        (
            changed(
                "[pools.rollout]",
                '[pools.a]\nrequires_proxy = false\n[pools.b]\nrequires_proxy = false\npaired_with = "a"\n'
                '[pools.c]\nrequires_proxy = false\npaired_with = "a"\n[pools.rollout]',
            ),
            [
                "pools.b.paired_with: 'a' or 'b' is paired with 'c', too; a pool has one partner",
                "pools.c.paired_with: 'a' or 'c' is paired with 'b', too; a pool has one partner",
            ],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout]\nrequire_weights = false\nmax_lag = 2\nstale = "remove"'),
            [
                "pools.rollout.max_lag: has no meaning with require_weights = false",
                "pools.rollout.stale: has no meaning with require_weights = false",
            ],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout.health]\nprobe = "ray"\npath = "/ping"\ndeep = "sglang"'),
            [
                'pools.rollout.health.path: has no meaning with probe = "ray"; leave it out, or write probe = "http"',
                'pools.rollout.health.deep: has no meaning with probe = "ray"; leave it out, or write probe = "http"',
            ],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout.health]\nmethod = "ping"'),
            ['pools.rollout.health.method: has no meaning with probe = "http"; leave it out, or write probe = "ray"'],
        ),
        (
            changed("[pools.rollout]", '[pools.rollout.health]\nprobe = "ray"').replace('"ray"', '"static"', 1),
            [
                (
                    'pools.rollout.health.probe: "ray" would ask nobody, because provider.kind = "static" joins no Ray '
                    'cluster; write probe = "http", or a provider of kind ray or ray-actors'
                )
            ],
        ),
        (
            changed(
                'kind = "ray"', 'kind = "static"\n[provider.workers.rollout-0-0]\nprimary = "h:1"\nrpc = "h:2"'
            ).replace(
                "[pools.rollout]",
                '[pools.rollout]\nurl = "http://{server}"\nrole = "prefill"\nbootstrap = "kv"\n'
                '[pools.rollout.health]\nurl = "http://{admin}"',
            ),
            [
                f"pools.rollout.{key}: names {kind!r}, an address that no worker of this pool has; "
                "they have: primary, rpc"
                for key, kind in (("url", "server"), ("health.url", "admin"), ("bootstrap", "kv"))
            ],
        ),
        (
            changed('kind = "ray"', 'kind = "static"\nfile = "a\\u0000b"'),
            ["provider.file: holds a NUL character, which no name may"],
        ),
        (
            changed('kind = "sglang"', 'kind = "miles"').replace("[pools.rollout]", '[pools.rollout]\nrole = "decode"'),
            ["pools.rollout.role: 'decode' cannot be told to a proxy of kind 'miles', which serves it"],
        ),
        (
            changed('kind = "sglang"', 'kind = "routed-api"'),
            ["proxies[0].options: is missing; write [proxies.options] with model_name"],
        ),
        (
            changed('kind = "sglang"', 'kind = "routed-api"')
            + '[proxies.options]\nmodel = "m"\nworker_key = "hunter2"',
            [
                "proxies[0].options.model: unknown key; did you mean 'model_name'?",
                "proxies[0].options.model_name: is missing; write model_name = ..., a string",
                (
                    'proxies[0].options.worker_key: a secret in clear: change it, and write { env = "NAME" } or '
                    '{ file = "path" }'
                ),
            ],
        ),
        (
            changed('kind = "sglang"', 'kind = "routed-api"') + '[proxies.options]\nmodel_name = " "',
            ["proxies[0].options: model_name is empty; write the name that clients ask for"],
        ),
        (
            GOOD + '[proxies.options]\nmodel_name = "m"',
            ["proxies[0].options.model_name: unknown key; nothing is known here"],
        ),
        (
            GOOD + "options = 5",
            ["proxies[0].options: the number 5 where a table is needed"],
        ),
        (
            changed('kind = "sglang"\nadmin_url = "http://127', 'kind = "haproxy"\nadmin_url = "http://127')
            + '[proxies.options]\nbackend = "b"',
            [
                (
                    "proxies[0].admin_url: 'http://127.0.0.1:30000' has no scheme that fits; write it as "
                    "unix:///run/haproxy/admin.sock"
                ),
            ],
        ),
        (
            "proxies = 5\n" + changed("[pools.rollout]", "").partition("[[proxies]]")[0],
            ["proxies: the number 5 where a list of tables ([[...]]) is needed"],
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, text, expected):
    found = problems(tmp_path, text)
    assert found == [f"rollbook.toml: {line}" for line in expected]


@pytest.mark.parametrize(
    "text",
    [
        GOOD + 'api_key = "hunter2"',
        GOOD + 'api_key = ["hunter2"]',
        GOOD + 'apikey = "hunter2"',
        changed('url = "nats', 'token = "hunter2"\nurl = "nats'),
        changed("nats://127.0.0.1:4222", "nats://me:hunter2@h:1"),
        changed("nats://127.0.0.1:4222", "nats://me:hunter2/x@h:1"),
        changed("nats://127.0.0.1:4222", "me:hunter2@h:1"),
        changed("http://127.0.0.1:30000", "http://me:hunter2@h:1"),
        changed("[pools.rollout]", '[pools.rollout]\nurl = "http://me:hunter2@{primary}"'),
        changed('url = "nats', 'nkey = "SUAHUNTER2AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"\nurl = "nats'),
    ],
)
def test_a_secret_is_never_repeated(tmp_path, text):
    assert "hunter2" not in "\n".join(problems(tmp_path, text)).lower()


def test_all_problems_are_said_at_once(tmp_path):
    text = """
        fleet = "a b"
        [provider]
        kind = "static"
        manager = "x"
        [[proxies]]
        name = "p"
        kind = "sglang"
        pools = [1]
        [logs]
        format = "xml"
    """
    found = problems(tmp_path, text)
    keys = ["fleet", "provider.manager", "proxies[0].admin_url", "proxies[0].pools", "logs.format"]
    assert [line.split(": ")[1] for line in found] == keys


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("unix:///run/haproxy.sock", None),
        ("unix://run/haproxy.sock", "a socket is written unix:///path/of/it"),
        ("unix:///run/", "a socket is written unix:///path/of/it"),
        ("tcp://127.0.0.1:9999", None),
        ("tcp://127.0.0.1", "'tcp://127.0.0.1' is not a host and a port; write tcp://host:port"),
        ("tcp://127.0.0.1:9999/x", "'tcp://127.0.0.1:9999/x' is not a host and a port; write tcp://host:port"),
    ],
)
def test_an_admin_url_is_one_of_its_kind(tmp_path, url, expected):
    text = changed('kind = "sglang"\nadmin_url = "http://127.0.0.1:30000"', f'kind = "haproxy"\nadmin_url = "{url}"')
    text += '[proxies.options]\nbackend = "b"'
    if expected is None:
        assert read(tmp_path, text).settings.proxies[0].admin_url == url
    else:
        assert problems(tmp_path, text) == [f"rollbook.toml: proxies[0].admin_url: {expected}"]


def test_one_router_can_be_two_proxies_if_they_are_different_parts_of_it(tmp_path):
    table = '[[proxies]]\nname = "{}"\nkind = "routed-api"\nadmin_url = "http://h:1"\npools = ["rollout"]\n'
    table += '[proxies.options]\nmodel_name = "{}"\n'
    head = GOOD.partition("[[proxies]]")[0]
    assert len(read(tmp_path, head + table.format("a", "m") + table.format("b", "n")).settings.proxies) == 2
    assert problems(tmp_path, head + table.format("a", "m") + table.format("b", "m")) == [
        (
            "rollbook.toml: proxies[1].admin_url: is the router of proxies[0] already; one table with all its pools is "
            "enough"
        )
    ]
