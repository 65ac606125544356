"""Settings of the identity provider."""

from urllib.parse import urlsplit

from diagnoser.adapters.oidc import OidcConfig, OidcProvider
from diagnoser.config.authentication import is_loopback
from diagnoser.config.settings import Settings, listed
from diagnoser.model.errors import BadInput
from diagnoser.model.people import Role, RoleMapping

CALLBACK = "/login/oidc/callback"


def open_provider(settings: Settings) -> OidcProvider | None:
    """Open the identity provider; None where none is configured. Raises BadInput, which lists every fault."""
    if not settings.oidc_issuer:
        return None
    faults = [*_faults(settings)]
    if faults:
        raise BadInput("settings: " + "; ".join(faults))
    roles = {value: Role(role) for value, role in _entries(settings.oidc_roles)}
    defaults = {"none": None, "viewer": Role.VIEWER}
    return OidcProvider(
        OidcConfig(
            issuer=settings.oidc_issuer,
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_client_secret.get_secret_value(),
            scopes=settings.oidc_scopes,
            name_claim=settings.oidc_name_claim,
            roles=RoleMapping(settings.oidc_role_claim, roles, defaults[settings.oidc_default_role]),
            redirect=settings.base_url.rstrip("/") + CALLBACK,
        )
    )


def _faults(settings: Settings) -> list[str]:
    faults = []
    issuer = urlsplit(settings.oidc_issuer)
    is_local = issuer.scheme == "http" and is_loopback(issuer.hostname)
    if issuer.scheme != "https" and not is_local:
        faults.append("DIAGNOSER_OIDC_ISSUER must begin with https://: whoever can change its answers can be anybody")
    if not settings.oidc_client_id:
        faults.append("DIAGNOSER_OIDC_CLIENT_ID is missing")
    if not settings.base_url:
        faults.append("DIAGNOSER_BASE_URL is missing: the provider sends people back there")
    if "openid" not in settings.oidc_scopes.split():
        faults.append("DIAGNOSER_OIDC_SCOPES must hold openid")
    return faults + _role_faults(settings)


def _role_faults(settings: Settings) -> list[str]:
    faults = []
    for value, role in _entries(settings.oidc_roles):
        if not value or role not in set(Role):
            faults.append(f"DIAGNOSER_OIDC_ROLES: {value[:60]}={role[:60]} must be a value, '=' and one of {_ROLES}")
    if not settings.oidc_roles.strip(" ,") and settings.oidc_default_role == "none":
        faults.append("nobody could come in: set DIAGNOSER_OIDC_ROLES, or DIAGNOSER_OIDC_DEFAULT_ROLE=viewer")
    return faults


_ROLES = ", ".join(Role)


def _entries(text: str) -> list[tuple[str, str]]:
    """Values may hold '=': names of groups in a directory do."""
    entries = []
    for entry in listed(text):
        value, _, role = entry.rpartition("=")
        entries.append((value.strip(), role.strip()))
    return entries
