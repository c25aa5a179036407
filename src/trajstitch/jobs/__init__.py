"""Jobs: what the commands do, in run directories; a job that was killed continues when it is called again."""
