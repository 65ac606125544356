"""What the flow asks of the world: each port has adapters for it. One module per subject.

Times are seconds since the epoch. Every method that waits may raise ``Unavailable``.
"""

from diagnoser.ports.alerts import AlertChannel
from diagnoser.ports.archive import Archive, ArchivedObject
from diagnoser.ports.audit import AuditedCall, auditing, current_call
from diagnoser.ports.messages import Message, MessageSource
from diagnoser.ports.people import IdentityProvider, PasswordHasher
from diagnoser.ports.services import (
    Clock,
    Embedder,
    LanguageModel,
    ModelAnswer,
    ModelRequest,
    ModelSample,
    Sender,
    ToolCall,
    ToolRound,
    ToolSpec,
    WakeSignal,
)
from diagnoser.ports.trials import Command, CommandResult, NodeExecutor, Order, OrderState, OrderStatus
