"""Training question frames.  ``(a|b)`` chooses, ``{n}`` is a card or a term, ``{t}`` the topic, ``{p}`` parameters, ``{m}`` GB.

The frames of VALUE and ABILITY are shared by all kinds of fact, so that only the topic noun tells what is asked:
frames of their own for each kind leave a gap of twenty points between trained and held-back wordings.
"""

from __future__ import annotations

N = "(the|a|my|an|this|our||) {n}"

VALUE = tuple(
    frame.replace("{N}", N)
    for frame in (
        "what is the {t} (of|for|on|in) {N}",
        "what's the {t} (of|for|on|in) {N}",
        "what {t} (is|has) {N}",
        "(which|what) {t} does {N} (have|use|offer|need|report|get|bring|come with)",
        "(which|what) {t} do i (have|get|own) (with|on) {N}",
        "{n} {t}",
        "{n}: {t}",
        "{n}, {t}",
        "{t} {n}",
        "{t} (of|for|on) {N}",
        "(tell me|give me|show me|look up|find|list|name|state) the {t} (of|for) {N}",
        "i (need|want|would like) (to know|) the {t} (of|for) {N}",
        "do you (know|remember) the {t} (of|for) {N}",
        "does (anyone|somebody) know the {t} of {N}",
        "i (have|own|got|use|bought|ordered) {N}. (what is its {t}|which {t} is it|tell me the {t}|what {t} does it have|{t})",
        "(my card is|here is|this machine has|we run|there is) {N}. (what is the {t}|which {t} is that|what {t} do i get|{t})",
        "how (high|large|big|good|new|quick|much) is the {t} (of|on) {N}",
        "what about the {t} of {N}",
        "(which|what) {t} (should|must|do|can) i (set|see|choose|note|take|expect) (for|with|on|from) {N}",
        "i forgot the {t} of {N}",
        "(remind me|can you remind me) of the {t} of {N}",
        "is the {t} of {N} known",
        "{N} in the server: {t}",
        "for {N} the {t} is",
        "the {t} of {N} is what",
        "{N} has (which|what) {t}",
        "{N} has how much {t}",
        "(how|what) (is|about) {t} with {N}",
        "(which|what) is {N}'s {t}",
        "(could|can|would) you (say|tell me) (which|what) {t} {N} has",
        "i am (looking for|asking for|after) the {t} of {N}",
        "(we|they) want to know the {t} of {N}",
        "(check|print) the {t} for {N}",
        "someone gave me {N}, what {t} does it have",
        "before i buy {N}: what is the {t}",
        "what would be the {t} of {N}",
        "{t}? i have {N}",
        "{n}? {t}",
    )
)

ABILITY = tuple(
    frame.replace("{N}", N)
    for frame in (
        "(does|can|will|do) {N} (support|handle|do|run|compute|use|have|calculate|accept|like|know|offer) {t} (well|fast|at all|natively||||)",
        "(can|does) {N} (multiply|process|work with|compute with|speed up) {t} (well|fast|at all|natively||||)",
        "{t} (on|with|in|for) {N}",
        "{n} {t} (support|units|speed||arithmetic|math|performance)",
        "{n}: {t}",
        "{n}, {t}, (ok|fast|good|works|yes or no)",
        "is {t} (supported|possible|native|fast|available|ok|slow|a good choice|useful|quick|hardware accelerated) (on|for|with|by|in) {N}",
        "(are|is) there (any|) {t} (support|hardware|arithmetic|units|) (in|on|for|with) {N}",
        "(can|should|may|could) (i|you|we) (use|run|choose|pick|compute in|train in|take|work in|multiply in|load a model in) {t} (on|with|for) {N}",
        "does {t} (work|run|help|make sense) (well|fast|quickly|) (on|with) {N}",
        "i (have|own|bought|use) {N}. (does it support|can it do|can i use|is it ok for|what about|will it run|has it|does it multiply) {t}",
        "(has|have) {N} (got|) {t} (units|support|arithmetic|hardware|)",
        "tell me (if|whether) {N} (supports|has|can do|can multiply|likes|can use) {t}",
        "how (good|fast|quick|slow) is {t} (on|with) {N}",
        "how (good|fast|quick|slow) is {N} (in|at|with) {t}",
        "is {N} (good|fast|ok|made|built|able|slow|capable) (for|with|at|in|of) {t}",
        "(do|will|would) {t} (weights|models|layers|multiplications|operations|tensors) (work|run|run well|be fast) on {N}",
        "i want (to use|to run|) {t} on {N}",
        "my model is in {t} and my card is {N}",
        "my model (uses|wants|needs) {t}, does {N} (do|have|support) (it|that)",
        "{N} and {t}",
        "{N} and {t}: (is that ok|does that go together|any trouble|will it be slow)",
        "what (happens|goes wrong) with {t} on {N}",
        "why (is|does) {t} (fail|slow|not work) on {N}",
        "do i (have|get) {t} (on|in|with) {N}",
        "would {t} be (fine|ok|fast|wise|possible) (on|for|with) {N}",
        "will i be able to use {t} (on|with) {N}",
        "is {N} (one of the cards|a card|a gpu) with {t}",
        "does {N} come with {t} (support|units|)",
        "(i wonder|i am not sure|please check) (if|whether) {N} (can do|has|supports) {t}",
        "{t} (yes or no|or not) on {N}",
        "(is|was) {N} (designed|made) for {t}",
        "they say {N} (cannot do|has no|is bad at|is good at) {t}. (true|is that right)",
        "is it (ok|fine|possible|sensible|fast) to (use|run|compute in) {t} on {N}",
        "what does {N} (do|make) of {t}",
        "should {t} be (fast|quick|used|avoided) on {N}",
        "{t} on {n}?",
    )
)

TOPICS: dict[str, tuple[tuple[str, ...], str]] = {
    "capability": (
        VALUE,
        "(compute capability|cuda compute capability|cc|sm version|sm number|cuda capability|sm|sm architecture|compute capability number|compute version)",
    ),
    "memory": (VALUE, "(memory|vram|memory size|video memory|ram|gpu memory|number of gb|amount of memory|memory capacity|gb)"),
    "generation": (VALUE, "(generation|architecture|family|chip generation|gpu architecture|gpu family|gpu generation)"),
    "bandwidth": (VALUE, "(memory bandwidth|bandwidth|memory speed|gb/s|memory throughput|bandwidth in gb/s|gigabytes per second)"),
    "driver": (VALUE, "(last driver|last driver branch|newest driver|last cuda version|last cuda toolkit|driver support|cuda 13 support|newest cuda)"),
    "dtype": (
        VALUE,
        "(best format|best dtype|right format|best precision|recommended dtype|best number format|dtype to use|right number format|preferred precision|right dtype)",
    ),
    "vendor": (VALUE, "(maker|vendor|manufacturer|brand)"),
    "bf16": (ABILITY, "(bf16|bfloat16|bf16 matrices|bfloat16 products|brain floats)"),
    "f16": (ABILITY, "(f16|fp16|float16|half precision|fp16 arithmetic|16-bit half floats)"),
    "int8": (ABILITY, "(int8|i8|8-bit integers|int8 products|int8 arithmetic|int8 matrices|8-bit integer products)"),
    "matrix": (ABILITY, "(tensor cores|matrix cores|tensor core units)"),
    "fp8": (ABILITY, "(fp8|f8|8-bit floats|float8|fp8 matrices)"),
}

# A few frames that fit one kind alone.
EXTRA: dict[str, tuple[str, ...]] = {
    kind: tuple(frame.replace("{N}", N) for frame in frames)
    for kind, frames in {
        "capability": (
            "for which (compute capability|sm|architecture number) do i (compile|build) on {N}",
            "is {N} sm 7.5 or something else",
            "(which|what) (sm|cc) is {N}",
            "nvcc needs the (sm|compute capability) of {N}",
        ),
        "memory": (
            "how much (memory|vram|video memory|ram) (does|do) {N} (have|come with|offer)",
            "how much (memory|vram|video memory|ram) (has|is in|is on) {N}",
            "how many (gb|gigabytes) (of memory|of vram|of ram|) (does|has|are in) {N} (have|got|)",
            "how much (vram|memory) do i (have|get) (with|on) {N}",
            "(how big|how large) is the (vram|memory) (of|in) {N}",
            "(how big|how large) is {N}'s (vram|memory)",
        ),
        "generation": (
            "(which|what) (generation|architecture|family) (is|does) {N} (belong to|from|)",
            "is {N} (pascal|turing|ampere|ada|rdna2|volta|hopper|a pascal card|an ampere card|a turing card)",
            "from (which|what) (generation|family) (is|comes) {N}",
            "to (which|what) (generation|family) does {N} belong",
            "is {N} (old|new)",
        ),
        "bandwidth": (
            "how (fast|quick) is the (memory|vram) (of|on|in) {N}",
            "how many gb/s (does|can) {N} (have|read|do)",
            "how (fast|quickly) (does|can) {N} read (its|) memory",
        ),
        "driver": (
            "is {N} (still|) supported (by new drivers|by the driver|by current drivers|by new cuda|)",
            "does cuda 13 (work with|support|go with|like) {N}",
            "(which|what) (driver|cuda) (does|can) {N} (need|use|run)",
            "(can|does) {N} (use|run|have) (cuda 13|the newest driver|new drivers|current drivers)",
            "(what|which) is the (newest|last) (driver|cuda|cuda toolkit) for {N}",
        ),
        "dtype": (
            "(which|what) (format|dtype|number format|precision|data type) (should|do|would|can) i (use|take|choose) (on|with|for) {N}",
            "(which|what) (format|dtype|precision) is (best|right|fastest) (on|with|for) {N}",
            "should i use (f16 or bf16|bf16 or f32|f16 or f32) (on|with) {N}",
            "how do i run (a model|models) on {N}",
        ),
        "matrix": ("are there (tensor|matrix) cores (in|on) {N}",),
        "vendor": ("who (makes|made|built|sells) {N}", "is {N} from (nvidia|amd|intel)", "(which|what) company makes {N}"),
    }.items()
}

ALL = tuple(
    frame.replace("{N}", N)
    for frame in (
        "tell me about {N}",
        "tell me (something|more|everything) about {N}",
        "what (can|is) {N} (do|)",
        "{n}",
        "what (do|can) you (know|say|tell me) about {N}",
        "i have {N}",
        "(describe|explain|summarize|show) {N}",
        "(info|facts|specs|data|figures) (on|about|of|for) {N}",
        "{n} (specs|info|data|facts|features)",
        "my (card|gpu) is {N}",
        "do you know {N}",
        "what kind of (card|gpu) is {N}",
        "why (does|is) {N} (refuse|fail with|not run) (the model|my model|this)",
        "what about {N}",
        "and {N}",
    )
)

FIT_CARD = tuple(
    frame.replace("{N}", N)
    for frame in (
        "(which|what) (format|dtype|precision) for a {p} model on {N}",
        "(can|could|will) {N} (run|hold|load|take) a {p} model",
        "does a {p} model (fit|run|work) on {N}",
        "i want to run a {p} model on {N}",
        "{p} model on {N}",
        "is {N} enough for a {p} model",
        "how do i run a {p} model on {N}",
        "i have {N}. can i run a {p} model",
    )
)

FIT = (
    "(which|what) (format|dtype|precision) (should i use|do you recommend|is best|fits) for a {p} model (on|with) (a card with|a gpu with|) {m} gb",
    "(does|will|can) a {p} model (fit|run|work) (in|on|with) {m} gb",
    "{p} model (on|in) {m} gb",
    "{p} (on|in) {m} gb (vram|of memory|)",
    "i have {m} gb (of vram|of memory|). (can i run|how do i run|which format for) a {p} model",
    "how (can|do) i (run|load|fit) a {p} model (in|on|with) {m} gb",
    "is {m} gb enough for a {p} model",
    "my (card|gpu) has {m} gb and the model {p} (parameters|weights|)",
    "{m} gb, {p} model",
    "with {m} gb, (which|what) (format|dtype) for {p}",
    "(which|what) (format|dtype|precision) (would you use|is right) for a {p} model on a {m} gb (card|gpu)",
)

SIZE = (
    "how (much memory|many gb|big|large) (does|is) a {p} model (need|take|use|)",
    "(memory|size|gigabytes) (of|for) a {p} model",
    "how much (vram|memory) do i need for (a|) {p} (parameters|model|)",
    "{p} model (size|memory)",
    "how (heavy|large) are {p} weights",
    "what does a {p} model (weigh|need|take)",
)

CONCEPT = (
    "what (is|are) {n}",
    "what does {n} mean",
    "what's {n}",
    "explain {n}",
    "{n}",
    "define {n}",
    "tell me about {n}",
    "can you explain {n} (to me|)",
    "i do not (understand|know) {n}",
    "what is meant by {n}",
    "describe {n} (in short|briefly|)",
    "(meaning|definition|explanation) of {n}",
    "why (do i need|is there) {n}",
    "how does {n} work",
    "what do you know about {n}",
    "i read about {n}",
    "{n} (definition|meaning|explained)",
    "what is the (meaning|point|idea|use) of {n}",
    "(help me understand|teach me) {n}",
    "what exactly is {n}",
    "i (heard|saw) the word {n}. what is it",
    "what is (a|an|the) {n}",
    "what are {n}s",
)

ERROR = (
    "what does '{n}' mean",
    "what does {n} mean",
    "i get (the error|) {n}",
    "error: {n}",
    "{n}",
    "how do i (fix|solve) '{n}'",
    "why do i (see|get) {n}",
    "what is {n}",
    "help, {n}",
    "my program (says|prints|fails with) '{n}'",
    "it (crashes|stops|fails) with {n}",
    "(explain|reason for) '{n}'",
    "torch says {n}",
    "i get {n} on my {c}, why",
    "{n} on a {c}",
)

COMPARE = (
    "which is (better|faster|newer|bigger), {N} or {O}",
    "is {N} (faster|better|newer|slower) than {O}",
    "compare {N} (and|with|to) {O}",
    "{n} (vs|versus|or|against) {o}",
    "{N} or {O}",
    "what is the difference between {N} and {O}",
    "should i buy {N} or {O}",
    "should i replace {N} (by|with) {O}",
)
COMPARE = tuple(frame.replace("{N}", N).replace("{O}", N.replace("{n}", "{o}")) for frame in COMPARE)

LIST = (
    "(which|what) (cards|gpus) have (compute capability 6.1|compute capability 7.5|bf16|tensor cores|fp8|16 gb|24 gb|int8|8 gb)",
    "(which|what) (cards|gpus) (support|can do|multiply) (bf16|bfloat16|fp8|int8|f16)",
    "list (all|the|) (cards|gpus) (with|of) (bf16|8 gb|pascal|ampere|tensor cores|the turing generation|nvidia|amd)",
    "(what|which) (pascal|turing|ampere|ada|amd|nvidia|intel|apple) (cards|gpus) (are there|do you know|exist)",
    "how many (cards|gpus) (do you know|are there|have bf16)",
    "name (all|some) (cards|gpus) with (bf16|fp8|tensor cores)",
    "what is the (cheapest|fastest|best|biggest) (card|gpu) with (bf16|24 gb|fp8)",
)

LEADS = ("", "", "", "", "", "", "", "hi, ", "hello! ", "please tell me, ", "quick question: ", "i want to know: ", "can you tell me: ", "sorry, ", "hey. ", "so ", "ok, ")
TAILS = ("?", "?", "?", "?", "?", "", "", ".", " ?", " please", " please?", "? thanks")

# what stands for the card of the turn before, and what names no card at all
PRONOUNS = ("it", "it", "that card", "this card", "the card", "that one", "that gpu")
NAMELESS = ("it", "card", "gpu", "graphics card", "card here", "gpu in this machine")
