"""Hand-written sentences: concepts (rung's own words among them), error messages, small talk, and what to refuse."""

from __future__ import annotations

UNKNOWN_CARD = "I don't know that card. Is the name right? `rung devices` shows what this machine has."
WHICH_CARD = "Tell me the name of your card and I can say. `rung devices` shows what this machine has."
UNKNOWN_WORD = "I don't know that word. I know graphics cards, number formats and a few error messages."
ONE_CARD = "I only know one card at a time. Ask me about each of them."
NO_LISTS = "I cannot list cards: I know one card at a time. The catalogue of rung holds them all."
OFF_TOPIC = "I only know about graphics cards and number formats, so I cannot help with that."

# names as users write them, then the answer
CONCEPTS: tuple[tuple[str, str], ...] = (
    ("rung|the rung program|this program", "rung runs any model on the device you have: it finds out what the device can compute, plans the formats, and steps down by itself when something does not work."),
    ("rung devices|the devices command", "`rung devices` shows the processors of this machine and what each of them can compute, with the proof of it."),
    ("rung formats|the formats command", "`rung formats` lists the formats in which rung can store a weight, with their bits and their quality."),
    ("rung ladder|the ladder command", "`rung ladder OP FORMAT` shows the implementations of an operation, best first, and why each one is taken or refused."),
    ("rung plan|the plan command", "`rung plan MODEL` shows which format, device and number type each part of a model would get, with memory and time."),
    ("rung run|the run command", "`rung run MODEL \"question\"` runs a language model here, in the best format that this device can do."),
    ("ladder|a ladder in rung", "A ladder is the list of implementations of an operation, best first. The last one is plain torch and runs everywhere."),
    ("rung of a ladder|step of a ladder", "A rung is one implementation of an operation. When it is refused or fails, the next one down the ladder is used."),
    ("capability|device capability", "A capability is one thing a device can do, such as multiplying bf16, with its level: native, emulated, absent or unknown."),
    ("probe|probing|capability probe", "A probe computes something small on the device and compares the values, because a launch alone proves nothing."),
    ("verdict|a verdict in rung", "A verdict is a yes or a no together with the reason. rung never says no without a sentence that tells why."),
    ("quarantine|quarantined rung", "A quarantined implementation has raised an error or computed wrong values on this device, so it is not used there again."),
    ("simulated device|simulated card", "A simulated device is a card that is not here. It is chosen by name, so that a plan can be made for another machine."),
    ("dtype|data type|number type", "A dtype is the number format of a tensor: how many bits each value has and what they mean. Common ones are f32, f16, bf16 and int8."),
    ("f32|fp32|float32|single precision", "f32 is the 32-bit float: 1 sign bit, 8 exponent bits and 23 fraction bits. Every GPU computes it, but it needs 4 bytes per value."),
    ("f16|fp16|float16|half precision", "f16 is the 16-bit float with 5 exponent bits and 10 fraction bits. It needs 2 bytes and overflows above 65504."),
    ("bf16|bfloat16|brain float", "bf16 is a 16-bit float with 8 exponent bits and 7 fraction bits. It has the range of f32 but less precision than f16."),
    ("tf32|tensorfloat|tensor float 32", "tf32 is a mode of NVIDIA tensor cores since Ampere: inputs keep the range of f32 but only 10 fraction bits, sums stay in f32."),
    ("fp8|f8|float8|e4m3|e5m2", "fp8 is an 8-bit float. e4m3 has 4 exponent and 3 fraction bits, e5m2 has 5 and 2."),
    ("fp4|e2m1", "fp4 is a 4-bit float with 2 exponent bits and 1 fraction bit. A block of values shares a scale."),
    ("mxfp4|microscaling", "mxfp4 stores 4-bit floats in blocks of 32 that share one power of two as their scale."),
    ("int8|8-bit integer|8 bit quantization", "int8 stores a weight as a whole number from -127 to 127 with one scale per row. It halves the memory of f16 and loses little quality."),
    ("int4|4-bit integer|4 bit quantization", "int4 stores a weight in 4 bits, which gives 16 levels, with a scale per block. It takes about a quarter of the memory of f16."),
    ("nf4|normal float 4|4-bit normalfloat", "nf4 is a 4-bit format whose 16 levels follow a normal distribution. Each block of 64 weights shares one scale, the absmax."),
    ("q4_0|q4 0", "Q4_0 is a GGUF format with 4 bits per weight and one f16 scale for each block of 32 weights: 4.5 bits in all."),
    ("q8_0|q8 0", "Q8_0 is a GGUF format with 8 bits per weight and one f16 scale for each block of 32 weights: 8.5 bits in all."),
    ("q4_k|q4 k|k-quant", "Q4_K is a GGUF format with 4 bits per weight in blocks of 256 that hold eight small scales: 4.5 bits in all."),
    ("q6_k|q6 k", "Q6_K is a GGUF format with 6 bits per weight in blocks of 256 that hold sixteen small scales: 6.5625 bits in all."),
    ("absmax|absolute maximum|absmax scale", "absmax is the largest absolute value of a block or row. Dividing by it brings all values between -1 and 1."),
    ("scale|scale factor|quantization scale", "A scale is the number that turns stored integers back into real values: value = integer times scale."),
    ("quantization|quantisation|quantizing a model", "Quantization stores weights with fewer bits, for example int8 or nf4 instead of f16. The model gets smaller and a little less exact."),
    ("dequantization|dequantize|dequantizing", "Dequantization turns stored small numbers back into floats by multiplying with their scale, usually just before a matrix product."),
    ("block size|quantization block|block of 32", "A block is a group of weights, often 32 or 64, that share one scale. Small blocks are more exact but store more scales."),
    ("sqnr|signal to noise ratio", "SQNR is the ratio of signal to quantization noise, in dB. Six dB more means that the error is halved."),
    ("kv cache|key value cache|kv-cache", "The KV cache keeps the keys and values of all earlier tokens, so each new token needs only one step. It grows with the length of the text."),
    ("prefill|prompt processing|prefill phase", "Prefill is the first phase of generation: the whole prompt goes through the model at once. It is limited by arithmetic."),
    ("decode|decoding|decode phase", "Decoding is the phase in which tokens are written one by one. Every token reads all weights once, so memory bandwidth sets the speed."),
    ("tensor core|matrix core", "A tensor core is a unit that multiplies small matrices in one step. NVIDIA has them since Volta, but the GTX 16 series lacks them."),
    ("dp4a|dp4a instruction|dot4", "dp4a is an instruction that multiplies four pairs of int8 numbers and adds them to a 32-bit sum."),
    ("compute capability|sm version|cc number", "Compute capability is the version number of an NVIDIA GPU architecture, for example 6.1 or 8.6. Programs need code for it."),
    ("ptx|ptx code|parallel thread execution", "PTX is the intermediate code of CUDA. The driver can compile it for a newer GPU, while a cubin runs only on its own major version."),
    ("cubin|cuda binary|sass", "A cubin is compiled machine code for one GPU architecture. It runs on the same major version with an equal or higher minor version."),
    ("memory bandwidth|bandwidth|gb/s", "Memory bandwidth is how many gigabytes per second the GPU reads from its memory. It limits how fast a language model writes tokens."),
    ("vram|video memory|gpu memory", "VRAM is the memory on the graphics card. Weights, KV cache and activations must fit in it, or part of the work moves to the CPU."),
    ("offloading|cpu offload|offload", "Offloading keeps part of the weights in main memory. It is slow but lets large models run."),
    ("emulation|emulated bf16|bf16 emulation", "Emulation means that the GPU has no unit for a format and converts the values to another one to compute. The results are right, but it is slow."),
    ("overflow|inf|f16 overflow", "Overflow means that a value is too large for the format and becomes infinity. f16 overflows above 65504; bf16 and f32 reach about 3e38."),
    ("nan|not a number", "NaN means not a number. It comes from operations such as infinity minus infinity, often after an f16 overflow."),
    ("accumulation|f32 accumulation", "Accumulation is the summing of products in a matrix multiplication. Inputs may be f16 while the sum is kept in f32."),
    ("gguf|gguf file|gguf format", "GGUF is the model file format of llama.cpp. It holds weights, often in 4 to 8 bits, and the tokenizer in one file."),
    ("safetensors|safetensors file|safetensors format", "safetensors is a simple file format for weights. It can be mapped into memory and runs no code when loaded."),
    ("pickle|pickle file|.bin file", "A pickle is a Python file format that can run code when it is loaded, so rung refuses it. Convert it to safetensors."),
    ("lora|lora adapter|qlora", "LoRA trains two small matrices beside each frozen weight instead of the weight itself. QLoRA does it on top of a 4-bit model."),
    ("flash attention|flashattention|fa2", "FlashAttention computes attention in tiles without storing the large score matrix. Version 2 needs Ampere or newer on NVIDIA."),
    ("token|tokenizer", "A token is a piece of text, a word or part of one. The tokenizer cuts text into tokens, and the model writes one after another."),
    ("cuda|cuda toolkit|nvidia cuda", "CUDA is NVIDIA's platform for computing on its GPUs: a driver, a compiler and libraries such as cuBLAS."),
    ("rocm|hip|amd rocm", "ROCm is AMD's platform for computing on its GPUs. Each chip has a target name such as gfx906 or gfx1100."),
    ("gemm|matrix multiplication|matmul", "A GEMM is a general matrix multiplication. Almost all work of a language model is GEMMs."),
    ("bitsandbytes|bnb", "bitsandbytes is a library that stores linear layers in int8 or nf4 and trains with 8-bit optimizers."),
    ("perplexity|ppl", "Perplexity measures how surprised a model is by a text. Lower is better; it shows how much quantization hurts."),
)

# what the message says, how users cut it, and the answer
ERRORS: tuple[tuple[str, str], ...] = (
    ("no kernel image is available for execution on the device|no kernel image is available|no kernel image", "The library holds no code for the compute capability of your GPU. Install a build that lists it, or an older version of the library."),
    ("cuda out of memory. tried to allocate|cuda out of memory|out of memory|torch.outofmemoryerror", "The GPU memory is full. Use a smaller format such as int8 or nf4, a shorter text, a smaller batch or offloading."),
    ("cublas_status_not_supported|cublas_status_not_supported when calling cublasgemmex", "cuBLAS refused this matrix product. Often it was bf16 on a card that does not multiply bf16: use f16 or f32 there."),
    ("at::cuda::blas::gemm: not implemented for struct c10::bfloat16|gemm: not implemented for bfloat16", "This build of PyTorch has no bf16 matrix product. Load the model in f16 or f32, or install a newer build."),
    ("torch not compiled with cuda enabled|not compiled with cuda", "You installed the CPU build of PyTorch. Install a wheel with CUDA support."),
    ("the nvidia driver on your system is too old|nvidia driver is too old|driver too old", "The CUDA version of your library needs a newer driver. Update the driver or install a build for an older CUDA."),
    ("no cuda-capable device is detected|no cuda device|no cuda gpus are available", "The driver does not see a GPU. Check nvidia-smi, and check that the driver branch still supports your card."),
    ("device-side assert triggered|cuda error: device-side assert triggered", "An index was out of range inside a kernel, often a label or token number that is too large. The process must be restarted."),
    ("an illegal memory access was encountered|illegal memory access", "A kernel read outside its memory. Run again with CUDA_LAUNCH_BLOCKING=1 to find the operation that failed."),
    ("the provided ptx was compiled with an unsupported toolchain|unsupported toolchain", "The PTX code is newer than your driver understands. Update the driver."),
    ("too many resources requested for launch", "The kernel wants more registers or threads than this GPU has. Use a smaller block size."),
    ("flashattention only supports ampere gpus or newer|flash attention only supports ampere", "FlashAttention 2 needs compute capability 8.0 or more. Use sdpa or eager attention on older cards."),
    ("cublas_status_alloc_failed", "cuBLAS could not get memory for its workspace. The GPU memory is full: free some or use a smaller format."),
    ("hip error: invalid device function|invalid device function", "The library holds no code for your GPU. On AMD, use a build of ROCm that lists your gfx target."),
    ("illegal instruction|illegal instruction (core dumped)", "The program uses CPU instructions such as AVX2 or AVX512 that your processor lacks. Use a build for older CPUs."),
    ("required aspect fp64 is not supported on the device|fp64 is not supported", "The Intel GPU has no 64-bit floats. Convert the data to f32 first."),
    ("igemmlt not available|igemmlt not available (probably built with no_cublaslt)", "This bitsandbytes build has no int8 matrix product for your GPU. Use nf4 or f16 there."),
    ("loss is nan|the loss becomes nan", "A value overflowed, often in f16. Use bf16 or f32, or a lower learning rate."),
)

TALK: tuple[tuple[str, str], ...] = (
    ("hello|hello there|hi|hey|good morning|hi there|good evening|good afternoon|greetings|hiya|hello again|hello friend|hello, nice to meet you|hallo", "Hello! Ask me about a graphics card, a number format or an error message."),
    ("who are you|what are you|what is your name|are you a chatbot|introduce yourself|are you human|hi, who are you|are you an ai|which model are you|hello, what are you|what's your name", "I am a very small demonstration model. I know facts about graphics cards and number formats, and nothing else."),
    ("what can you do|help|how can you help me|what do you know|what can i ask|what topics do you know|can you help me|how does this work|what should i ask|i need help", "I can tell you what a graphics card supports: its memory, compute capability and number formats. I also explain terms and error messages."),
    ("are you sure|is that right|are you always right|can i trust you|is this correct|do you make mistakes", "I am only a demonstration and can be wrong. `rung devices` and the catalogue are what knows."),
    ("thanks|thank you|thanks a lot|great, thank you|ok thanks|thank you very much|cool|great|nice|ok|good answer|perfect", "You are welcome!"),
    ("bye|goodbye|see you|good night|see you later|bye bye", "Goodbye!"),
    ("how are you|how is it going|are you ok|how do you do|hello, how are you|hi, how are you doing|how are you today", "I am fine, thank you. Which graphics card do you want to know about?"),
    ("what is the weather|tell me a joke|who is the president|write a poem|what is 2 + 2|where is paris|cook me dinner|tell me a story|what time is it|who won the game|translate this to french|do you love me|what is the capital of france|what is the capital of spain|write a program|who was napoleon|sing a song|how old are you|what is the meaning of life|what is 17 times 3|why is the sky blue|how tall is mount everest|recommend a film|write an email|what is love|who wrote hamlet|how do i bake bread|what day is it|play a game|tell me about dogs|what is the population of china|how far is the moon|solve this equation|what should i eat", OFF_TOPIC),
    ("my gpu is old, what can i do|i have an old graphics card|what should i do with an old card|can i use ai on an old gpu|my card is very old|how do i run models on old hardware|my graphics card is from 2015|i have a ten year old graphics card|can old cards run models", "Old cards still work. Store the weights in int8 or nf4, compute in f32 or f16, and avoid bf16. Tell me the name of your card and I can say more."),
    ("my gpu has little memory|i have not enough vram|the model does not fit|the model is too big for my card|how do i save memory|i ran out of memory|how can i fit a bigger model|i have too little memory", "Use a smaller format: int8 halves the memory of f16, nf4 takes about a quarter. If it still does not fit, offload layers to the CPU."),
    ("my model is slow|how can i make it faster|generation is too slow|why is it so slow|speed up my model|why is decoding slow|why is decoding slower than prefill", "Writing tokens is limited by memory bandwidth, so smaller weights are faster: try int8 or 4 bits. Also avoid formats that your GPU only emulates."),
    ("which gpu should i buy|what card do you recommend|which graphics card is best for ai|recommend me a gpu|what is the best gpu|which card is the best", "Look first at memory, then at bandwidth and formats. A card that multiplies bf16 natively and has 12 GB or more is a good start."),
    ("can i run a model without a gpu|does it work on the cpu|i have no gpu|can i use only the cpu|do i need a graphics card|can i run models on a cpu", "Yes, a CPU works, only slower. Use int8 or 4-bit weights, because main memory bandwidth sets the speed."),
    ("which format is best|what is the best number format|which dtype should i use|what precision should i use|which dtype is best", "It depends on the card: use bf16 where it is native, else f16 where it is fast, else f32. Tell me the name of your card."),
    ("what is the difference between f16 and bf16|f16 or bf16|bf16 versus f16|why is bf16 better than f16|compare bf16 and f16|f16 vs bf16|do i need bf16 to train a lora", "Both have 16 bits. f16 has more precision but overflows above 65504; bf16 has the range of f32 but less precision and needs newer hardware."),
    ("what is the difference between int8 and nf4|int8 or nf4|is 4 bit worse than 8 bit|compare int8 and int4|int8 vs nf4", "int8 needs one byte per weight and loses almost nothing. nf4 needs about half of that and loses a little quality."),
    ("how much memory does a model need|how do i compute the memory of a model|how many bytes per parameter|how big is a model", "Multiply the parameters by the bytes of the format: 4 for f32, 2 for f16 and bf16, 1 for int8, about 0.56 for nf4. The KV cache comes on top."),
    ("does my card support bf16|does my gpu multiply bf16|how much memory does my card have|what is the compute capability of my card|is my gpu supported|can my card run this|what about my gpu", WHICH_CARD),
)

# words for "what is X?" that nobody should expect a graphics program to know
OTHER_WORDS = tuple(
    "photosynthesis banana democracy inflation gravity volcano jazz opera football tennis chess coffee chocolate pizza dinosaur elephant penguin tornado "
    "molecule protein vitamin algebra calculus haiku sonnet renaissance feudalism taxation mortgage marathon bicycle helicopter submarine telescope microscope "
    "guitar violin orchestra sculpture mythology philosophy psychology anthropology glacier monsoon savanna rainforest electron neutron quasar nebula "
    "blockchain javascript kubernetes docker excel wordpress html css linux windows macos android".split()
)
