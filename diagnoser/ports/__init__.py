"""What the flow asks of the world: each port has adapters for it. One module per subject.

Times are seconds since the epoch. Every method that waits may raise ``Unavailable``.
"""

from diagnoser.ports.audit import AuditedCall, auditing, current_call
from diagnoser.ports.messages import Message, MessageSource, SourceLine
from diagnoser.ports.node_executor import Command, CommandResult, NodeExecutor, Order, OrderState, OrderStatus
from diagnoser.ports.services import (
    AlertChannel,
    Archive,
    ArchivedObject,
    Clock,
    LanguageModel,
    ModelAnswer,
    ModelRequest,
    ModelSample,
    Pause,
    Sender,
    ToolCall,
    ToolRound,
    ToolSpec,
    WakeSignal,
)
