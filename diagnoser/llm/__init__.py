"""Everything about the language model that needs no network: prompts, answers, and the check of what it claims."""
