"""All settings, in one frozen class. Environment variables are ``DIAGNOSER_`` and the field's name in capitals.

A secret may also come from a file: ``DIAGNOSER_<NAME>_FILE``, which wins. An unknown ``DIAGNOSER_`` name stops the
start; those of the client (`diagnoser run`) are known.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, create_model

from diagnoser.channels import CHANNELS
from diagnoser.client import VARIABLES as CLIENT_VARIABLES
from diagnoser.model.errors import BadInput

PREFIX = "DIAGNOSER_"
FILE = "_FILE"
STANDARD_OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

Seconds = Annotated[float, Field(gt=0)]


if TYPE_CHECKING:

    class ChannelSettings(BaseModel):
        """The groups of all channels for alerts: each knows its own fields."""

else:
    ChannelSettings = create_model("ChannelSettings", __base__=tuple(channel.settings for channel in CHANNELS))


class Settings(ChannelSettings):
    """Each description is the row of its setting in docs/configuration.md: units first, one fact a sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="Address to listen on. Anything but loopback needs tokens or users.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8321, description="Port to listen on. 0: any free port.")
    role: Literal["all", "api", "worker"] = Field(
        "all",
        description="Parts of the service to run. `api`: requests and pages. `worker`: compression, "
        "diagnoses, plans and messages; it answers `/livez`, `/readyz` and `/metrics` only. Both need PostgreSQL or "
        "one machine.",
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Processes that take requests on the same port, each a separate replica. Connections are dealt "
        "out among them.",
    )
    base_url: str = Field("", description="Public address of the pages, for links in alerts. Empty: host and port.")
    database_url: str = Field(
        "sqlite:///data/diagnoser.db", description="`sqlite:///path` or `postgresql://user:password@host/name`."
    )
    redis_url: SecretStr = Field(
        SecretStr(""),
        description="`redis://host:6379/0`, for wake-ups between replicas. Empty: each replica polls twice a second.",
    )
    tokens: SecretStr = Field(
        SecretStr(""),
        description="Bearer tokens, comma separated, each `<scope>:<secret>`, beside those of `diagnoser token`. "
        "Scopes: `ingest`, `agent`, `read`, `operate`, `admin`. Without any token or user: no authentication, on "
        "loopback only.",
    )
    tls_certificate: Path | None = Field(
        None,
        description="Certificate of the service with its chain (PEM), to serve https without a proxy. A renewed one is "
        "read with the next start.",
    )
    tls_key: Path | None = Field(None, description="Private key of that certificate (PEM), without a password.")
    trusted_proxies: str = Field(
        "127.0.0.1, ::1",
        description="Addresses and networks of proxies, comma separated, whose `X-Forwarded-For` and "
        "`X-Forwarded-Proto` are believed; `*` for any. Without it, all people behind a proxy share its address, "
        "and the bounds on wrong passwords with it.",
    )
    oidc_issuer: str = Field(
        "",
        description="Address of the identity provider (OpenID Connect), as its tokens name it. Needs "
        "`DIAGNOSER_BASE_URL`; register `/login/oidc/callback` below it. Empty: none.",
    )
    oidc_client_id: str = Field("", description="Id of this service there.")
    oidc_client_secret: SecretStr = Field(
        SecretStr(""), description="Secret of this service there. Empty: a public client, which PKCE protects."
    )
    oidc_scopes: str = Field("openid profile email", description="Scopes to ask for, separated by blanks.")
    oidc_name_claim: str = Field(
        "preferred_username", description="Claim that names a person here. The first name stays with the account."
    )
    oidc_role_claim: str = Field(
        "groups", description="Claim that the role follows from, in the ID token; dots lead into objects."
    )
    oidc_roles: str = Field(
        "",
        description="Values of that claim and the roles they give, comma separated: `ml-platform=admin, "
        "oncall=operator`. The highest one counts.",
    )
    oidc_default_role: Literal["none", "viewer"] = Field(
        "none", description="Role of people whom none of the values gives one. `none`: they may not come in."
    )
    rules_dir: Path | None = Field(
        None,
        description="Folder of the site's rules, filters, policy and tables. They are added to the shipped ones and "
        "replace those of the same path or rule id; `disabled.yaml` names what is not used. Empty: only the "
        "shipped ones.",
    )
    prompts_dir: Path | None = Field(
        None,
        description="Folder of the site's prompts. A folder `<name>/v<N>` in it replaces the shipped one. Empty: only "
        "the shipped ones.",
    )
    mapping: Path | None = Field(
        None,
        description="File that says which labels and attributes name job, attempt, rank, node, cluster and source. "
        "Empty: the presets.",
    )

    allowed_hosts: str = Field(
        "",
        description="Names that requests may call this service by (their `Host`), comma separated: "
        "`diagnoser.example`, `*.example` (names below it) or `*` (any). Others get 421. IP addresses, `localhost` and "
        "the host of `DIAGNOSER_BASE_URL` are always allowed. Empty: any name where tokens are set, else no other.",
    )
    max_connections: Annotated[int, Field(ge=1)] = Field(
        4096,
        description="Connections at a time; at most 128 fewer than the files that the process may open. Beyond that, "
        "the one that has been idle longest is closed.",
    )
    request_head_seconds: Seconds = Field(
        20.0, description="Seconds that a request line with its headers (64 KiB at most) may take to arrive."
    )

    exit_grace_seconds: Seconds = Field(1.0, description="Seconds to wait for late lines after an attempt has ended.")
    fatal_debounce_seconds: Seconds = Field(
        10.0,
        description="Seconds without new lines after a fatal line before the diagnosis; longer where the scheduler "
        "shows the job running.",
    )
    hang_check_idle_seconds: Seconds = Field(
        11.0,
        description="Seconds without new lines before the silence of a running attempt is compared with its own "
        "rhythm. A hang is suspected after three usual steps, and never before 11 seconds.",
    )
    hang_diagnosis_idle_seconds: Seconds = Field(
        300.0,
        description="Seconds without new lines before a running attempt is diagnosed even if its rhythm is not known.",
    )
    retention_days: Annotated[int, Field(ge=0)] = Field(
        365,
        description="Days without news after which an attempt goes, with its log, diagnoses and plans, and its job "
        "with the last one; at least 8. Never one that waits for a verdict, whose plan waits or is under way, or "
        "that a person judged. 0: kept for ever.",
    )
    audit_retention_days: Annotated[int, Field(ge=0)] = Field(
        400, description="Days that entries of the audit log are kept; at least 8. 0: for ever."
    )
    max_stored_bytes: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Bytes of logs and dumps in the database, compressed. Beyond that, the oldest attempts go before "
        "their time, but none with news in the last 8 days. 0: no limit.",
    )
    archive: str = Field(
        "",
        description="Where lines are kept as they came: `file:///folder`, or `s3://`, `gs://` or `az://` with "
        "bucket and prefix. Empty: nowhere; once a log is compressed, the lines that it kept are all that is left. "
        "With an archive, large requests are compressed behind their acknowledgement as well. Logs of "
        "nodes are not archived.",
    )
    archive_endpoint: str = Field(
        "",
        description="URL of an S3-compatible server, such as `http://127.0.0.1:9000`. Empty: Amazon's. Keys come from "
        "`AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, the machine's role or, with boto3 beside it, Amazon's files.",
    )
    archive_retention_days: Annotated[int, Field(ge=0)] = Field(
        0, description="Days that archived lines are kept; at least 8. 0: as long as their attempt."
    )
    max_archived_bytes: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Bytes in the archive, compressed. Beyond that, the oldest lines go before their time, but none of "
        "the last 8 days. 0: no limit.",
    )
    tenants_learn_together: bool = Field(
        False,
        description="Use what failures of one tenant taught for the jobs of all: confirmed failures are recognised, "
        "shown and given to the model, and learned rules decide, whoever's job it is. No: only for jobs of the same "
        "tenant, and for jobs of no known tenant.",
    )
    claim_lease_seconds: Seconds = Field(
        6.0,
        description="Seconds after which the work of a replica that died is taken over. One that lives renews its "
        "leases three times as often, however long its work takes.",
    )

    llm_url: str = Field(
        "", description="OpenAI-compatible server, such as `http://127.0.0.1:8000/v1`. Empty: no model."
    )
    llm_model: str = Field("", description="Name of the model on that server.")
    llm_api_key: SecretStr = Field(SecretStr(""), description="API key of that server.")
    llm_trigger: Literal["never", "undecided", "always_explain"] = Field(
        "undecided",
        description="When to ask the model. `never`; `undecided`: where the rules' verdict is in doubt; "
        "`always_explain`: also to explain verdicts that are not.",
    )
    llm_deadline_seconds: Seconds = Field(
        60.0,
        description="Seconds the model has for one verdict, second look included. After that, the verdict of the rules "
        "stands.",
    )
    llm_tokens_per_hour: Annotated[int, Field(ge=0)] = Field(
        5_000_000,
        description="Tokens read and written an hour, for each replica. Then the rules decide alone. 0: no limit.",
    )
    embedding_url: str = Field(
        "",
        description="OpenAI-compatible server for embeddings of failures; its key is `DIAGNOSER_LLM_API_KEY`. "
        "Empty: hashed words, computed locally.",
    )
    embedding_model: str = Field("", description="Name of the embedding model on that server.")
    rule_promotion_min_hits: Annotated[int, Field(ge=0)] = Field(
        3,
        description="Confirmed hits in shadow, none of them wrong, that promote a learned rule. 0: only people "
        "promote.",
    )
    log_agent: bool = Field(
        False,
        description="Learn Filter Rules for the routine of job families: see rules.md. Off: stored ones are not used.",
    )
    redact_file: Path | None = Field(
        None,
        description="File with RE2 patterns, one a line, that are masked as well before text leaves the service.",
    )

    webhook_url: str = Field(
        "", description="Receiver of recovery plans, signed as Standard Webhooks defines. Empty: none."
    )
    webhook_secret: SecretStr = Field(SecretStr(""), description="Signing secret of the webhook: `whsec_` and base64.")
    allow_private_targets: bool = Field(False, description="Allow webhook targets on loopback and private addresses.")
    recovery_mode: Literal["policy", "observe", "act"] = Field(
        "policy",
        description="`policy`: each row of the policy table sets its mode, `observe` by default. `observe`: never act. "
        "`act`: every plan may act.",
    )

    prometheus_url: str = Field(
        "",
        description="Prometheus that is asked about nodes of failed attempts, such as `http://prometheus:9090`.",
    )
    prometheus_token: SecretStr = Field(SecretStr(""), description="Bearer token for that Prometheus.")

    ft_launcher_log_root: Path | None = Field(
        None, description="Folder of log files that `ft_launcher` may ask about (`POST` and `GET /logs`). Empty: none."
    )

    kafka_properties: Path | None = Field(
        None,
        description="File of librdkafka properties for `diagnoser consume`, one `name=value` a line: how it talks to "
        "the brokers, and who it is. With a password in it, others than its owner and group must not be able to read "
        "it.",
    )

    line_source_authorization: SecretStr = Field(
        SecretStr(""),
        description="Header `Authorization` with which `diagnoser consume --from` asks a log store: `Bearer TOKEN`.",
    )

    otlp_endpoint: str = Field(
        "",
        description="Address of an OpenTelemetry receiver (OTLP over HTTP) for traces, such as "
        "`http://otel-collector:4318`; they go to `/v1/traces` below it. Needs the extra `otel`. Empty: "
        "`OTEL_EXPORTER_OTLP_ENDPOINT`; without either, none.",
    )
    log_format: Literal["console", "json"] = Field(
        "console", description="Format of the service's own log: `console` or `json`."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")

    @property
    def asks_model(self) -> bool:
        """Whether a language model is asked about failures."""
        return bool(self.llm_url) and self.llm_trigger != "never"


SECRETS = frozenset(name for name, field in Settings.model_fields.items() if field.annotation is SecretStr)
FROM_FILES = SECRETS | {"database_url"}
"""Settings that may be read from a file: the URL of a database has its password in it."""
_FILE_SETTINGS = {f"{name}{FILE.lower()}": name for name in FROM_FILES}


def listed(text: str) -> list[str]:
    """Split a setting that names several things: without blanks around them, and without empty ones."""
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def load(environment: Mapping[str, str], **overrides: object) -> Settings:
    """Settings from environment variables; overrides win. Raises BadInput, which lists every fault."""
    settings, faults = read(environment, **overrides)
    if faults:
        raise BadInput("settings: " + "; ".join(faults))
    return settings


def read(environment: Mapping[str, str], **overrides: object) -> tuple[Settings, list[str]]:
    """Read the settings, and what is wrong with them: a setting that cannot be as it is given has its default."""
    values, faults = _values(environment)
    values |= overrides
    try:
        return Settings(**values), faults
    except ValidationError as error:
        wrong = {str(entry["loc"][0]): entry["msg"] for entry in error.errors()}
    faults += [f"{PREFIX}{name.upper()}: {why}" for name, why in wrong.items()]
    sound = {name: value for name, value in values.items() if name not in wrong}
    return Settings(**sound), faults


def _values(environment: Mapping[str, str]) -> tuple[dict[str, object], list[str]]:
    """The value of each setting that the environment or a file gives, and what is wrong with their names and files."""
    values: dict[str, object] = {"otlp_endpoint": environment.get(STANDARD_OTLP_ENDPOINT, "")}
    faults = []
    for name, value in sorted(environment.items()):
        if not name.startswith(PREFIX):
            continue
        if name in CLIENT_VARIABLES:
            continue
        field = name.removeprefix(PREFIX).lower()
        if field in _FILE_SETTINGS:
            try:
                values[_FILE_SETTINGS[field]] = Path(value).read_text("utf-8").strip()
            except OSError as error:
                faults.append(f"{name}: {error}")
        elif field in Settings.model_fields:
            values[field] = value
        else:
            faults.append(f"{name}: no such setting" + _nearest(field))
    return values, faults


def _nearest(field: str) -> str:
    for close in get_close_matches(field, Settings.model_fields, 1):
        return f"; did you mean {PREFIX}{close.upper()}?"
    return ""
