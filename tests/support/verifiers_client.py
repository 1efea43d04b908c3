"""A task of verifiers, played by its own harness in its own environment: `python FILE BASE_URL QUESTION ANSWER`.

The file is the task set too: verifiers imports it by the name of the module.
"""

import asyncio
import sys

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))


class SumConfig(vf.TasksetConfig):
    question: str
    answer: str


class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> list[SumTask]:
        return [SumTask(SumData(prompt=self.config.question, answer=self.config.answer), self.config.task)]


__all__ = ["Sums"]


async def main(base_url: str, question: str, answer: str) -> None:
    config = vf.SingleAgentEnvConfig(
        taskset={"id": "verifiers_client", "question": question, "answer": answer},
        agent={"harness": {"id": "null"}, "runtime": {"type": "subprocess"}},
    )
    env = vf.SingleAgentEnv(config)
    client = vf.EvalClientConfig(base_url=base_url, api_key_var="OUTDO_KEY")
    (task,) = list(env.taskset)
    async with env.serving():
        episode = await env.run_episode(task, vf.ModelContext(model="policy", client=client))
    assert episode.ok, [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    print(episode.traces[0].reward)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
