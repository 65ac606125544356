"""Which rank failed first, which never arrived, which node is at fault, where progress stopped or the loss broke."""
