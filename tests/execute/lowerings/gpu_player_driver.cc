// Prints what the player of GPUs asks of NCCL and CUDA, without either: a line for each call.
//
// Reads a file of int32, a program as `QueuedProgram.numbers`. Rows have 12 bytes.

#include "gpu_player.cc"

#include <cstdio>

namespace {

constexpr uintptr_t kBase = 1 << 24;  // of the input; of the result and the workspace twice, thrice

// A place as memory and row.
std::string place(uintptr_t at) {
  return std::to_string(at / kBase - 1) + " " + std::to_string(at % kBase / 12);
}
std::string place(const void* at) { return place(reinterpret_cast<uintptr_t>(at)); }
long id(void* handle) { return long(reinterpret_cast<uintptr_t>(handle)) - 1; }

struct Printing {
  static int ncclGroupStart() { return std::puts("begin"), 0; }
  static int ncclGroupEnd() { return std::puts("end"), 0; }
  static int ncclSend(const void* at, size_t bytes, int type, int peer, void* comm, void* stream) {
    return std::printf("send %ld %ld %d %s %zu %d\n", id(comm), id(stream), peer, place(at).c_str(),
                       bytes, type), 0;
  }
  static int ncclRecv(void* at, size_t bytes, int type, int peer, void* comm, void* stream) {
    return std::printf("recv %ld %ld %d %s %zu %d\n", id(comm), id(stream), peer, place(at).c_str(),
                       bytes, type), 0;
  }
  static int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void* stream, void** arguments, void**) {
    auto at = [&](int i) { return place(*static_cast<char**>(arguments[i])); };
    return std::printf("combine %ld %s %s %s %llu\n", id(stream), at(0).c_str(), at(1).c_str(),
                       at(2).c_str(), *static_cast<unsigned long long*>(arguments[3])), 0;
  }
  static int cuMemcpyDtoDAsync(uintptr_t into, uintptr_t from, size_t bytes, void* stream) {
    return std::printf("copy %ld %s %s %zu\n", id(stream), place(into).c_str(),
                       place(from).c_str(), bytes), 0;
  }
  static int cuMemsetD8Async(uintptr_t at, unsigned char value, size_t bytes, void* stream) {
    return std::printf("set %ld %s %d %zu\n", id(stream), place(at).c_str(), value, bytes), 0;
  }
  static int cuEventRecord(void* event, void* stream) {
    return std::printf("record %ld %ld\n", id(stream), id(event)), 0;
  }
  static int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    return std::printf("wait %ld %ld\n", id(stream), id(event)), 0;
  }
  static const char* ncclGetLastError(void*) { return nullptr; }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::FILE* file = std::fopen(argv[1], "rb");
  if (!file) return 2;
  std::vector<int32_t> numbers;
  for (int32_t number; std::fread(&number, 4, 1, file) == 1;) numbers.push_back(number);
  gpu::Call call;
  call.program = gpu::Numbers(numbers.data(), numbers.size());
  call.input = reinterpret_cast<const char*>(kBase);
  call.output = reinterpret_cast<char*>(2 * kBase);
  call.work = reinterpret_cast<char*>(3 * kBase);
  call.row = 12;
  call.number = 4;
  auto handles = [](int count) {
    std::vector<void*> found;
    for (int i = 1; i <= count; ++i) found.push_back(reinterpret_cast<void*>(uintptr_t(i)));
    return found;
  };
  call.communicators = handles(numbers[gpu::kQueues]);
  call.streams = handles(numbers[gpu::kQueues] + 1);
  call.events = handles(numbers[gpu::kEvents]);
  for (call.rank = 0; call.rank < numbers[gpu::kRanks]; ++call.rank) {
    std::printf("rank %d\n", call.rank);
    if (!gpu::play(Printing{}, call).empty()) return 1;
  }
}
