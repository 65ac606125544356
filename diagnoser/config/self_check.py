"""Everything that the service is set up with, tried without serving: all faults at once."""

import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

from diagnoser.adapters.http import create_client, poster
from diagnoser.adapters.sql import administration, migrations
from diagnoser.adapters.sql.database import Database, connected, create_engine
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.webhook import RecoveryWebhook
from diagnoser.config import alerting, authentication, hazards, llm_factory
from diagnoser.config import settings as reading
from diagnoser.config.allowed_hosts import allowed_hosts, trusted_proxies
from diagnoser.config.identity import open_provider
from diagnoser.config.loader import load_analyzer, site_node_queries
from diagnoser.config.settings import Settings
from diagnoser.config.site_files import load_mapping, load_outbound_redactor
from diagnoser.config.storage import open_archive
from diagnoser.config.tls import check_certificate
from diagnoser.config.tracing import check_endpoint
from diagnoser.model.errors import BadInput, DiagnoserError, ModelFailed, RuleFaults, Unavailable

Check = Callable[[Settings], Awaitable[str]]
"""What it says of a part that works; raises DiagnoserError."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of one part: faults, or none and a word about it. warnings: of what has no effect."""

    part: str
    detail: str = ""
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


async def findings(environment: Mapping[str, str], *, reach: bool) -> list[Finding]:
    """Check every part. reach: also ask the database and the servers that are set."""
    settings, faults = reading.read(environment)
    found = [Finding("settings", "can be read", tuple(faults), tuple(hazards.warnings(settings)))]
    for part, check in {**_FILES, **(_SERVERS if reach else {})}.items():
        finding = await _finding(part, check, settings)
        found.append(_without_known(finding, found))
    return found


def _without_known(finding: Finding, earlier: Iterable[Finding]) -> Finding:
    """Leave out faults that an earlier part has: several parts read the site's folder of rules, and what is asked of a
    server is first read from the settings."""
    known = {fault for part in earlier for fault in part.faults}
    new = tuple(fault for fault in finding.faults if fault not in known)
    if new == finding.faults:
        return finding
    return Finding(finding.part, "not checked: an earlier check says why", new)


async def _finding(part: str, check: Check, settings: Settings) -> Finding:
    try:
        return Finding(part, await check(settings))
    except RuleFaults as error:
        return Finding(part, faults=tuple(map(str, error.faults)))
    except (DiagnoserError, OSError) as error:
        return Finding(part, faults=(str(error) or type(error).__name__,))


async def _rules(settings: Settings) -> str:
    """Rules, filters, calibration and the tables beside them, with the policy."""
    analyzer = load_analyzer(settings)
    mode = settings.recovery_mode
    return f"{len(analyzer.knowledge.engine.ruleset.rules)} rules, policy {analyzer.knowledge.policy.hash}, mode {mode}"


async def _node_queries(settings: Settings) -> str:
    site_node_queries(settings)
    return "can be read"


async def _database_address(settings: Settings) -> str:
    administration.check_place(settings.database_url, Settings.model_fields["database_url"].default)
    return administration.place(settings.database_url)


async def _mapping(settings: Settings) -> str:
    load_mapping(settings)
    return str(settings.mapping or "the presets")


async def _prompts(settings: Settings) -> str:
    """Check the prompts, also without a model: they are there for when one is set."""
    for name in llm_factory.PROMPTS:
        llm_factory.load_prompt(settings, name)
    load_outbound_redactor(settings)
    return "prompts and redaction can be read"


async def _tokens(settings: Settings) -> str:
    return f"{len(authentication.tokens(settings))} in the settings, beside those of the database"


async def _hosts(settings: Settings) -> str:
    names = allowed_hosts(settings)
    if "*" in names:
        return "any name"
    return ", ".join(sorted(names))


async def _proxies(settings: Settings) -> str:
    return ", ".join(trusted_proxies(settings)) or "none"


async def _certificate(settings: Settings) -> str:
    check_certificate(settings)
    if settings.tls_certificate is None:
        return "none"
    return f"{settings.tls_certificate}, with its key"


async def _identity_provider(settings: Settings) -> str:
    provider = open_provider(settings)
    return provider.name if provider else "none"


async def _listening(settings: Settings) -> str:
    try:
        socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadInput(f"DIAGNOSER_HOST: {settings.host!r} is no address of this machine: {error}") from None
    return f"{settings.host}:{settings.port}"


async def _alerts(settings: Settings) -> str:
    async with create_client() as client:
        receivers = alerting.open_receivers(settings, client)
    alerting.load_routing(settings)
    return ", ".join(sorted(receivers)) or "no receiver"


async def _webhook(settings: Settings) -> str:
    if not settings.webhook_url:
        return "none"
    async with create_client() as client:
        poster(settings.webhook_url, client, time.time, 1.0, settings.allow_private_targets)
        RecoveryWebhook(settings.webhook_url, settings.webhook_secret.get_secret_value(), client, time.time)
    return "set"


async def _webhook_host(settings: Settings) -> str:
    """Nothing is sent: a receiver would have to understand it."""
    if not settings.webhook_url:
        return "none"
    async with create_client() as client:
        receiver = poster(settings.webhook_url, client, time.time, 1.0, settings.allow_private_targets)
        await receiver.resolve()
    return "may be sent to"


async def _archive(settings: Settings) -> str:
    return "set" if open_archive(settings) else "none"


async def _traces(settings: Settings) -> str:
    """Whether anybody listens there is not asked: the service works without."""
    if not settings.otlp_endpoint:
        return "off"
    check_endpoint(settings.otlp_endpoint)
    return "set"


async def _database(settings: Settings) -> str:
    """Makes none, and changes none."""
    url = settings.database_url
    is_new = administration.check_place(url, Settings.model_fields["database_url"].default)
    place = administration.place(url)
    if is_new:
        _check_bind_address(settings, stored=False)
        return f"{place}, made at the start"
    try:
        return f"{place}, {await _schema(settings)}"
    except Unavailable as error:
        raise Unavailable(f"{place}: {str(error).removeprefix('database: ')}") from None


async def _schema(settings: Settings) -> str:
    url = settings.database_url
    found, needed = await administration.schema(url), migrations.head()
    if found not in ("", needed):
        async with connected(url) as connection:
            await connection.run_sync(migrations.check_known)
    if found == needed:
        store = SqlStore(Database(create_engine(url)))
        try:
            stored = bool(await store.tokens.list_all()) or await store.users.has_users()
            _check_bind_address(settings, stored=stored)
        finally:
            await store.close()
    state = f"schema {found or 'none'}"
    if found < needed:
        return f"{state}, the start brings it to {needed}"
    return state


def _check_bind_address(settings: Settings, *, stored: bool) -> None:
    try:
        authentication.tokens(settings)
    except BadInput:
        return  # another check says why
    authentication.check_bind_address(settings, stored=stored)


async def _redis(settings: Settings) -> str:
    if not (url := settings.redis_url.get_secret_value()):
        return "none"
    from diagnoser.adapters.redis import RedisWakeSignals  # loads for a while, and most sites have one replica

    redis = RedisWakeSignals(url, {})
    try:
        await redis.ping()
    finally:
        await redis.close()
    return "answers"


async def _model(settings: Settings) -> str:
    async with AsyncExitStack() as stack:
        model = llm_factory.connected(settings, stack)
        try:
            return await model.ping() if model else "none"
        except ModelFailed as error:
            where = urlsplit(settings.llm_url)
            address = f"{where.hostname}:{where.port}" if where.port else where.hostname
            raise BadInput(f"{address} (DIAGNOSER_LLM_URL): {error}") from None


async def _provider_answers(settings: Settings) -> str:
    provider = open_provider(settings)
    if provider is None:
        return "none"
    await provider.authorization_url("", "", "")
    return "answers"


async def _archive_answers(settings: Settings) -> str:
    archive = open_archive(settings)
    if archive is None:
        return "none"
    await archive.objects("", 1)
    return "answers"


_FILES: Mapping[str, Check] = {
    "rules and policy": _rules,
    "node queries": _node_queries,
    "database address": _database_address,
    "mapping": _mapping,
    "prompts": _prompts,
    "tokens": _tokens,
    "allowed hosts": _hosts,
    "address": _listening,
    "trusted proxies": _proxies,
    "certificate": _certificate,
    "identity provider": _identity_provider,
    "alerts": _alerts,
    "webhook": _webhook,
    "archive": _archive,
    "traces": _traces,
}
_SERVERS: Mapping[str, Check] = {
    "database": _database,
    "redis": _redis,
    "model": _model,
    "archive, asked": _archive_answers,
    "identity provider, asked": _provider_answers,
    "webhook, its host": _webhook_host,
}


def faults_of(found: list[Finding]) -> Iterator[str]:
    for finding in found:
        yield from (f"{finding.part}: {fault}" for fault in finding.faults)
