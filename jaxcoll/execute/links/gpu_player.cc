// Plays a rank's part of a schedule on an NVIDIA GPU: sends and receives of NCCL on several queues.
//
// A queue is a communicator and a stream of its own. NCCL does what one communicator is given in the
// order it is given, so groups of different queues do not wait for each other. Python lays them
// out (queues.py): which queue, where in memory, and which events say that a row may be read or
// written. What is left here is to hand all of it to NCCL and CUDA. The host waits for none of it,
// and XLA's stream goes on with the last message.
//
// Communicators are XLA's own, one per queue by its number, asked for in the call's prepare stage
// (xla/ffi/api/collectives_c_api.h). CUDA, NCCL and NVRTC are found in the process when a program
// first runs: this file is compiled without any of their headers, on machines without a GPU too.
//
// No circle of waits exists. A rank has at most one group in a queue and step, and hands out its
// groups step by step. Take the least step in which a message has not ended: all groups of earlier
// steps have ended, on all ranks, and with them all that its groups wait for. So all its groups can
// begin, and those that meet in a message do.

#if __has_include("xla/ffi/api/collectives_c_api.h")

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "xla/ffi/api/collectives_c_api.h"
#include "xla/ffi/api/ffi.h"

namespace {
namespace gpu {

namespace ffi = xla::ffi;

using Numbers = ffi::Span<const int32_t>;

// ---------------------------------------------------------------------------- libraries

// Of CUDA's driver, NVRTC and NCCL, as their headers declare them; all return 0 on success.
struct Libraries {
  int (*cuCtxGetCurrent)(void**);
  int (*cuCtxGetDevice)(int*);
  int (*cuDeviceGetAttribute)(int*, int, int);
  int (*cuStreamCreate)(void**, unsigned);
  int (*cuEventCreate)(void**, unsigned);
  int (*cuEventRecord)(void*, void*);
  int (*cuStreamWaitEvent)(void*, void*, unsigned);
  int (*cuMemcpyDtoDAsync)(uintptr_t, uintptr_t, size_t, void*);
  int (*cuMemsetD8Async)(uintptr_t, unsigned char, size_t, void*);
  int (*cuModuleLoadData)(void**, const void*);
  int (*cuModuleGetFunction)(void**, void*, const char*);
  int (*cuLaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        void*, void**, void**);
  int (*nvrtcCreateProgram)(void**, const char*, const char*, int, const char* const*,
                            const char* const*);
  int (*nvrtcCompileProgram)(void*, int, const char* const*);
  int (*nvrtcGetCUBINSize)(void*, size_t*);
  int (*nvrtcGetCUBIN)(void*, char*);
  int (*nvrtcGetProgramLogSize)(void*, size_t*);
  int (*nvrtcGetProgramLog)(void*, char*);
  int (*ncclGroupStart)();
  int (*ncclGroupEnd)();
  int (*ncclSend)(const void*, size_t, int, int, void*, void*);
  int (*ncclRecv)(void*, size_t, int, int, void*, void*);
  int (*ncclCommUserRank)(void*, int*);
  int (*ncclCommCount)(void*, int*);
  const char* (*ncclGetLastError)(void*);
  std::string missing;  // what could not be found
};

// Where NVRTC and NCCL lie; Python says it before a program is compiled.
std::string& place_of(int which) {
  static std::string places[2];
  return places[which];
}

Libraries found_libraries() {
  Libraries found{};
  void* handle = nullptr;
  auto open = [&](std::vector<std::string> names) {
    handle = nullptr;
    // One that XLA has loaded is the one whose communicators it hands out.
    for (int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
      for (const std::string& name : names) {
        if (!handle && !name.empty()) handle = dlopen(name.c_str(), flags);
      }
    }
    if (!handle && found.missing.empty()) found.missing = names.front();
  };
  auto get = [&](auto& function, const char* name) {
    void* symbol = handle ? dlsym(handle, name) : nullptr;
    if (!symbol && found.missing.empty()) found.missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  open({"libcuda.so.1"});
#define JAXCOLL_GET(name) get(found.name, #name)
  JAXCOLL_GET(cuCtxGetCurrent);
  JAXCOLL_GET(cuCtxGetDevice);
  JAXCOLL_GET(cuDeviceGetAttribute);
  JAXCOLL_GET(cuStreamCreate);
  JAXCOLL_GET(cuEventCreate);
  JAXCOLL_GET(cuEventRecord);
  JAXCOLL_GET(cuStreamWaitEvent);
  get(found.cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2");
  JAXCOLL_GET(cuMemsetD8Async);
  JAXCOLL_GET(cuModuleLoadData);
  JAXCOLL_GET(cuModuleGetFunction);
  JAXCOLL_GET(cuLaunchKernel);
  open({"libnccl.so.2", place_of(1)});
  JAXCOLL_GET(ncclGroupStart);
  JAXCOLL_GET(ncclGroupEnd);
  JAXCOLL_GET(ncclSend);
  JAXCOLL_GET(ncclRecv);
  JAXCOLL_GET(ncclCommUserRank);
  JAXCOLL_GET(ncclCommCount);
  JAXCOLL_GET(ncclGetLastError);
  open({"libnvrtc.so.13", "libnvrtc.so.12", place_of(0)});
  JAXCOLL_GET(nvrtcCreateProgram);
  JAXCOLL_GET(nvrtcCompileProgram);
  JAXCOLL_GET(nvrtcGetCUBINSize);
  JAXCOLL_GET(nvrtcGetCUBIN);
  JAXCOLL_GET(nvrtcGetProgramLogSize);
  JAXCOLL_GET(nvrtcGetProgramLog);
#undef JAXCOLL_GET
  return found;
}

const Libraries& libraries() {
  static const Libraries found = found_libraries();
  return found;
}

// ---------------------------------------------------------------------------- adding

// Numbers of 16 bits are added as floats and rounded once: a float has more than twice their digits.
constexpr char kCombine[] = R"(
struct Half {
  unsigned short bits;
  __device__ operator float() const {
    float wide;
#if BFLOAT
    wide = __uint_as_float(unsigned(bits) << 16);
#else
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
#endif
    return wide;
  }
  __device__ static Half of(float wide) {
    Half narrow;
#if BFLOAT
    unsigned all = __float_as_uint(wide);
    narrow.bits = wide != wide ? (all >> 16) | 0x40 : (all + 0x7fff + ((all >> 16) & 1)) >> 16;
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(wide));
#endif
    return narrow;
  }
};
template <typename T> __device__ T combined(T a, T b) {
#if OP == 0
  return a + b;
#elif OP == 1
  return a != a ? a : b != b ? b : a < b ? b : a;
#else
  return a != a ? a : b != b ? b : b < a ? b : a;
#endif
}
__device__ Half combined(Half a, Half b) { return Half::of(combined(float(a), float(b))); }

union Sixteen { uint4 all; TYPE each[16 / sizeof(TYPE)]; };

extern "C" __global__ void combine(TYPE* into, const TYPE* a, const TYPE* b, unsigned long long n) {
  unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long first = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  constexpr int many = 16 / sizeof(TYPE);
  bool aligned = (((unsigned long long)into | (unsigned long long)a | (unsigned long long)b) & 15) == 0;
  unsigned long long whole = aligned ? n / many : 0;
  for (unsigned long long i = first; i < whole; i += stride) {
    Sixteen x, y;
    x.all = ((const uint4*)a)[i];
    y.all = ((const uint4*)b)[i];
#pragma unroll
    for (int k = 0; k < many; ++k) x.each[k] = combined(x.each[k], y.each[k]);
    ((uint4*)into)[i] = x.all;
  }
  for (unsigned long long i = whole * many + first; i < n; i += stride) into[i] = combined(a[i], b[i]);
}
)";

// The type of C, whether it is bfloat16, and its bytes; no name where numbers are not combined so.
// `program.py` offers the same types. A complex number is added as two real ones.
struct Type {
  const char* name = nullptr;
  bool is_bfloat = false;
  size_t bytes = 0;
};
Type type_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32:
    case ffi::DataType::C64: return {"float", false, 4};
    case ffi::DataType::F64:
    case ffi::DataType::C128: return {"double", false, 8};
    case ffi::DataType::BF16: return {"Half", true, 2};
    case ffi::DataType::F16: return {"Half", false, 2};
    case ffi::DataType::S8: return {"signed char", false, 1};
    case ffi::DataType::S16: return {"short", false, 2};
    case ffi::DataType::S32: return {"int", false, 4};
    case ffi::DataType::S64: return {"long long", false, 8};
    case ffi::DataType::U8: return {"unsigned char", false, 1};
    case ffi::DataType::U16: return {"unsigned short", false, 2};
    case ffi::DataType::U32: return {"unsigned", false, 4};
    case ffi::DataType::U64: return {"unsigned long long", false, 8};
    default: return {};
  }
}

// A kernel that combines numbers on the current device, compiled when first asked for.
struct Kernel {
  void* function = nullptr;
  std::string error;
};
Kernel compiled(ffi::DataType type, int op) {
  const Libraries& lib = libraries();
  Type of = type_of(type);
  int device = 0, major = 0, minor = 0;
  lib.cuCtxGetDevice(&device);
  lib.cuDeviceGetAttribute(&major, 75, device);  // the compute capability
  lib.cuDeviceGetAttribute(&minor, 76, device);
  std::vector<std::string> options = {
      "--gpu-architecture=sm_" + std::to_string(major) + std::to_string(minor),
      std::string("-DTYPE=") + of.name, "-DOP=" + std::to_string(op),
      std::string("-DBFLOAT=") + (of.is_bfloat ? "1" : "0")};
  std::vector<const char*> said;
  for (const std::string& option : options) said.push_back(option.c_str());
  void* program = nullptr;
  Kernel made;
  int status = lib.nvrtcCreateProgram(&program, kCombine, "combine.cu", 0, nullptr, nullptr);
  if (!status) status = lib.nvrtcCompileProgram(program, int(said.size()), said.data());
  if (status) {
    size_t size = 0;
    std::string log;
    if (program && !lib.nvrtcGetProgramLogSize(program, &size) && size) {
      log.resize(size);
      lib.nvrtcGetProgramLog(program, log.data());
    }
    made.error = "NVRTC does not compile the additions (" + std::to_string(status) + "): " + log;
    return made;
  }
  size_t size = 0;
  lib.nvrtcGetCUBINSize(program, &size);
  std::string code(size, 0);
  lib.nvrtcGetCUBIN(program, code.data());
  void* module = nullptr;
  status = lib.cuModuleLoadData(&module, code.data());
  if (!status) status = lib.cuModuleGetFunction(&made.function, module, "combine");
  if (status) made.error = "CUDA does not load the additions (" + std::to_string(status) + ")";
  return made;
}

// ---------------------------------------------------------------------------- per device

// Streams, events and kernels of a device, made when first needed and kept. Calls of a device come
// one after the other, by XLA's thread for it.
struct Device {
  std::mutex mutex;
  std::vector<void*> streams, events;
  std::map<std::pair<int, int>, Kernel> kernels;

  // Enough streams and events; the number of an error of CUDA, or 0.
  int grow(size_t streams_needed, size_t events_needed) {
    const Libraries& lib = libraries();
    while (streams.size() < streams_needed) {
      void* made = nullptr;
      if (int status = lib.cuStreamCreate(&made, 1)) return status;  // waits for no default stream
      streams.push_back(made);
    }
    while (events.size() < events_needed) {
      void* made = nullptr;
      if (int status = lib.cuEventCreate(&made, 2)) return status;  // takes no times
      events.push_back(made);
    }
    return 0;
  }
};
Device& device() {
  static std::mutex mutex;
  static std::map<void*, std::unique_ptr<Device>> known;
  void* context = nullptr;
  libraries().cuCtxGetCurrent(&context);
  std::lock_guard lock(mutex);
  std::unique_ptr<Device>& found = known[context];
  if (!found) found = std::make_unique<Device>();
  return *found;
}

// ---------------------------------------------------------------------------- programs

// As instructions.py writes them: ranks, queues, events, rows of the input, of the result and of the
// workspace, where each rank's instructions begin, and the instructions.
enum Head { kRanks, kQueues, kEvents, kInputs, kOutputs, kWork, kStarts };
enum Instruction { kMessages, kCombineRows, kCopy, kZero, kRecord, kWait };

struct Call {
  Numbers program;
  const char* input = nullptr;
  char* output = nullptr;
  char* work = nullptr;
  size_t row = 0;  // bytes
  int rank = 0;
  std::vector<void*> communicators;
  std::vector<void*> streams;  // of the queues, and XLA's
  std::vector<void*> events;
  void* kernel = nullptr;
  size_t number = 1;  // bytes of a number that the kernel combines

  char* at(int32_t where, int32_t row_there) const {
    char* base = where == 0 ? const_cast<char*>(input) : where == 1 ? output : work;
    return base + size_t(row_there) * row;
  }
};

// Hand out all of a rank's instructions; an error's text, or "".
template <typename Lib>
std::string play(const Lib& lib, const Call& call) {
  const int32_t* next = call.program.begin() + call.program[kStarts + call.rank];
  const int32_t* end = call.program.begin() + call.program[kStarts + call.rank + 1];
  int nccl = 0, cuda = 0;
  while (next != end && !nccl && !cuda) {
    const int32_t* said = next + 1;
    switch (*next) {
      case kMessages: {  // queue, runs of rows: whether it arrives, the other rank, where, rows
        void* stream = call.streams[said[0]];
        void* communicator = call.communicators[said[0]];
        int32_t runs = said[1];
        const int32_t* run = said + 2;
        if (runs > 1) nccl = lib.ncclGroupStart();
        for (int32_t i = 0; i < runs; ++i, run += 5) {
          char* place = call.at(run[2], run[3]);
          size_t bytes = size_t(run[4]) * call.row;
          int status = run[0] ? lib.ncclRecv(place, bytes, 0, run[1], communicator, stream)
                              : lib.ncclSend(place, bytes, 0, run[1], communicator, stream);
          if (!nccl) nccl = status;
        }
        if (runs > 1) {
          int status = lib.ncclGroupEnd();
          if (!nccl) nccl = status;
        }
        next = run;
        break;
      }
      case kCombineRows: {  // queue, where it goes, what it is of, what is added, rows
        char* into = call.at(said[1], said[2]);
        char* a = call.at(said[3], said[4]);
        char* b = call.at(said[5], said[6]);
        unsigned long long count = size_t(said[7]) * call.row / call.number;
        void* arguments[] = {&into, &a, &b, &count};
        // Enough to move bytes faster than any link, and few beside NCCL's and XLA's kernels.
        unsigned blocks = unsigned(std::clamp<unsigned long long>(
            size_t(said[7]) * call.row / 16384, 1, 64));
        cuda = lib.cuLaunchKernel(call.kernel, blocks, 1, 1, 512, 1, 1, 0, call.streams[said[0]],
                                  arguments, nullptr);
        next = said + 8;
        break;
      }
      case kCopy:  // queue, where it goes, what it is of, rows
        cuda = lib.cuMemcpyDtoDAsync(
            uintptr_t(call.at(said[1], said[2])), uintptr_t(call.at(said[3], said[4])),
            size_t(said[5]) * call.row, call.streams[said[0]]);
        next = said + 6;
        break;
      case kZero:  // queue, where, rows
        cuda = lib.cuMemsetD8Async(uintptr_t(call.at(said[1], said[2])), 0,
                                   size_t(said[3]) * call.row, call.streams[said[0]]);
        next = said + 4;
        break;
      case kRecord:  // queue, event
        cuda = lib.cuEventRecord(call.events[said[1]], call.streams[said[0]]);
        next = said + 2;
        break;
      case kWait:  // queue, event
        cuda = lib.cuStreamWaitEvent(call.streams[said[0]], call.events[said[1]], 0);
        next = said + 2;
        break;
      default: return "the program holds no such instruction";
    }
  }
  if (nccl) {
    const char* text = lib.ncclGetLastError(call.communicators[0]);
    return "NCCL (" + std::to_string(nccl) + "): " + (text ? text : "");
  }
  return cuda ? "CUDA (" + std::to_string(cuda) + ")" : "";
}

// ---------------------------------------------------------------------------- the call

struct Collectives {
  using Type = const XLA_FFI_Collectives_Extension*;
  using CExtension = XLA_FFI_Collectives_Extension;
  static constexpr auto kName = "CollectivesExtension";
  static constexpr int32_t kExtensionType = XLA_FFI_Extension_Collectives;
  static constexpr int32_t kMajorVersion = XLA_FFI_Extension_Collectives_MajorVersion;
  static constexpr int32_t kMinorVersion = XLA_FFI_Extension_Collectives_MinorVersion;
  // Communicators are there from 0.1 on; what came later is not used.
  static bool Support(int32_t major, int32_t minor) { return major == 0 && minor >= 1; }
  static Type Create(const XLA_FFI_Api*, const CExtension* found) { return found; }
};

// XLA's own communicators have small numbers.
constexpr int64_t kFirstQueue = 0x6a636f6c6c00;

std::vector<XLA_FFI_ReplicaGroup> split(ffi::Span<const int64_t> groups, int32_t size) {
  std::vector<XLA_FFI_ReplicaGroup> found;
  for (size_t i = 0; i < groups.size(); i += size) found.push_back({groups.begin() + i, size_t(size)});
  return found;
}

// What XLA is asked about a queue's communicator, to promise it and to hand it out, has the same head.
template <typename Args>
Args of_queue(size_t size, const std::vector<XLA_FFI_ReplicaGroup>& groups, int32_t queue) {
  Args args{};
  args.struct_size = size;
  args.group_mode = XLA_FFI_GROUP_FLATTENED_ID;
  args.groups = groups.data();
  args.num_groups = groups.size();
  args.communication_id = kFirstQueue + queue;
  return args;
}

ffi::Error prepare(const XLA_FFI_Collectives_Extension* collectives, Numbers program,
                   ffi::Span<const int64_t> groups, int64_t) {
  std::vector<XLA_FFI_ReplicaGroup> raw = split(groups, program[kRanks]);
  for (int32_t queue = 0; queue < program[kQueues]; ++queue) {
    auto args = of_queue<XLA_FFI_Communicator_Request_Args>(
        XLA_FFI_Communicator_Request_Args_STRUCT_SIZE, raw, queue);
    if (collectives->request_communicator(collectives, &args)) {
      return ffi::Error::Internal("jaxcoll: XLA promises no communicator for queue " +
                                  std::to_string(queue));
    }
  }
  return ffi::Error::Success();
}

// What takes long or waits for the device is done before messages are under way.
ffi::Error initialize(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer>, ffi::Result<ffi::AnyBuffer>,
                      Numbers program, ffi::Span<const int64_t>, int64_t op) {
  const Libraries& lib = libraries();
  if (!lib.missing.empty()) {
    return ffi::Error::Internal("jaxcoll: " + lib.missing + " is not found in this process");
  }
  Device& here = device();
  std::lock_guard lock(here.mutex);
  if (int status = here.grow(program[kQueues], program[kEvents])) {
    return ffi::Error::Internal("jaxcoll: CUDA makes no stream (" + std::to_string(status) + ")");
  }
  if (op < 0) return ffi::Error::Success();
  Kernel& kernel = here.kernels[{int(x.element_type()), int(op)}];
  if (!kernel.function) kernel = compiled(x.element_type(), int(op));
  return kernel.function ? ffi::Error::Success() : ffi::Error::Internal("jaxcoll: " + kernel.error);
}

ffi::Error execute(void* stream, const XLA_FFI_Collectives_Extension* collectives, ffi::AnyBuffer x,
                   ffi::Result<ffi::AnyBuffer> result, ffi::Result<ffi::AnyBuffer> work,
                   Numbers program, ffi::Span<const int64_t> groups, int64_t op) {
  const Libraries& lib = libraries();
  std::vector<XLA_FFI_ReplicaGroup> raw = split(groups, program[kRanks]);
  Call call;
  call.program = program;
  call.input = static_cast<const char*>(x.untyped_data());
  call.output = static_cast<char*>(result->untyped_data());
  call.work = static_cast<char*>(work->untyped_data());
  call.row = x.size_bytes() / program[kInputs];
  for (int32_t queue = 0; queue < program[kQueues]; ++queue) {
    auto args = of_queue<XLA_FFI_Communicator_Get_Args>(
        XLA_FFI_Communicator_Get_Args_STRUCT_SIZE, raw, queue);
    if (collectives->get_communicator(collectives, &args) || !args.communicator) {
      return ffi::Error::Internal("jaxcoll: XLA has no communicator for queue " +
                                  std::to_string(queue));
    }
    call.communicators.push_back(args.communicator);
  }
  int ranks = 0;
  // A communicator numbers its ranks as the group names them, and so as the schedule does.
  if (lib.ncclCommUserRank(call.communicators[0], &call.rank) ||
      lib.ncclCommCount(call.communicators[0], &ranks) || ranks != program[kRanks]) {
    return ffi::Error::Internal("jaxcoll: the program is of " + std::to_string(program[kRanks]) +
                                " ranks, XLA's communicator of " + std::to_string(ranks));
  }
  Device& here = device();
  std::lock_guard lock(here.mutex);
  call.streams.assign(here.streams.begin(), here.streams.begin() + program[kQueues]);
  call.streams.push_back(stream);
  call.events.assign(here.events.begin(), here.events.begin() + program[kEvents]);
  if (op >= 0) {
    call.kernel = here.kernels[{int(x.element_type()), int(op)}].function;
    call.number = type_of(x.element_type()).bytes;
  }
  std::string error = play(lib, call);
  return error.empty() ? ffi::Error::Success() : ffi::Error::Internal("jaxcoll: " + error);
}

}  // namespace gpu
}  // namespace

#define JAXCOLL_EXPORT extern "C" __attribute__((visibility("default")))
#define JAXCOLL_ATTRIBUTES                   \
  .Attr<xla::ffi::Span<const int32_t>>("program") \
      .Attr<xla::ffi::Span<const int64_t>>("groups") \
      .Attr<int64_t>("op")
#define JAXCOLL_BUFFERS                      \
  .Arg<xla::ffi::AnyBuffer>()                \
      .Ret<xla::ffi::AnyBuffer>()            \
      .Ret<xla::ffi::AnyBuffer>()

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jaxcoll_gpu_prepare, gpu::prepare,
    xla::ffi::Ffi::Bind<xla::ffi::ExecutionStage::kPrepare>()
        .Ctx<xla::ffi::Extension<gpu::Collectives>>() JAXCOLL_ATTRIBUTES);
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jaxcoll_gpu_initialize, gpu::initialize,
    xla::ffi::Ffi::Bind<xla::ffi::ExecutionStage::kInitialize>() JAXCOLL_BUFFERS JAXCOLL_ATTRIBUTES);
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jaxcoll_gpu_play, gpu::execute,
    xla::ffi::Ffi::Bind()
        .Ctx<xla::ffi::PlatformStream<void*>>()
        .Ctx<xla::ffi::Extension<gpu::Collectives>>() JAXCOLL_BUFFERS JAXCOLL_ATTRIBUTES);
#pragma GCC visibility pop

JAXCOLL_EXPORT void jaxcoll_gpu_libraries(const char* nvrtc, const char* nccl) {
  gpu::place_of(0) = nvrtc;
  gpu::place_of(1) = nccl;
}

#endif
