"""The named methods. Each is one expression of named pieces; its docstring is its equation, whence it is, what differs.

`clipped`: the ratio is bounded by a clip. `reweighted`: the gradient of log πθ is weighed with a bounded number.
`gradient`: the plain policy gradient, and likelihood. What a preset has no option for is exchanged from outside:
`dataclasses.replace(dapo(), weight=sequence_mean, beta=0.01, kl_ratio=True)`.

In the equations i counts answers and t tokens, Σ_i runs over the B answers of the optimiser step that have a trained
token, and ρ_it = πθ(o_it) / π_old(o_it). Â is made outside, from rewards; each docstring names the published one.
"""

from outdo.algorithms.objectives.presets.clipped import bnpo as bnpo
from outdo.algorithms.objectives.presets.clipped import clip_cov as clip_cov
from outdo.algorithms.objectives.presets.clipped import dapo as dapo
from outdo.algorithms.objectives.presets.clipped import dr_grpo as dr_grpo
from outdo.algorithms.objectives.presets.clipped import gmpo as gmpo
from outdo.algorithms.objectives.presets.clipped import grpo as grpo
from outdo.algorithms.objectives.presets.clipped import grpo_clip as grpo_clip
from outdo.algorithms.objectives.presets.clipped import gspo as gspo
from outdo.algorithms.objectives.presets.clipped import gspo_token as gspo_token
from outdo.algorithms.objectives.presets.clipped import kl_cov as kl_cov
from outdo.algorithms.objectives.presets.clipped import luspo as luspo
from outdo.algorithms.objectives.presets.clipped import ppo as ppo
from outdo.algorithms.objectives.presets.clipped import rloo_clip as rloo_clip
from outdo.algorithms.objectives.presets.gradient import distillation as distillation
from outdo.algorithms.objectives.presets.gradient import gpg as gpg
from outdo.algorithms.objectives.presets.gradient import likelihood as likelihood
from outdo.algorithms.objectives.presets.gradient import opo as opo
from outdo.algorithms.objectives.presets.gradient import reinforce as reinforce
from outdo.algorithms.objectives.presets.gradient import reinforce_pp as reinforce_pp
from outdo.algorithms.objectives.presets.gradient import remax as remax
from outdo.algorithms.objectives.presets.gradient import rloo as rloo
from outdo.algorithms.objectives.presets.reweighted import cispo as cispo
from outdo.algorithms.objectives.presets.reweighted import dppo_kl as dppo_kl
from outdo.algorithms.objectives.presets.reweighted import dppo_tv as dppo_tv
from outdo.algorithms.objectives.presets.reweighted import dro as dro
from outdo.algorithms.objectives.presets.reweighted import sapo as sapo
from outdo.algorithms.objectives.presets.reweighted import vespo as vespo
