// An MPI of one process, which sends to itself, by the standard ABI: the player's calls of MPI run
// under sanitizers, and on machines without MPI.
//
// A message arrives when a receive of its tag is there, in the order of sends, and some time later
// by chance. What the player may not do ends the process with a line: call from several threads, or
// have more than two messages of a tag under way.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace {

struct Status {
  int source, tag, error, internal[5];
};
struct Request {
  bool is_send;
  char* bytes;
  int size, tag;
  bool is_over;
};
void* const kNone = reinterpret_cast<void*>(0x180);

std::vector<Request*> under_way;
std::mt19937 chance{7};
std::thread::id caller;

void check(bool is_right, const char* wrong) {
  if (is_right) return;
  std::fprintf(stderr, "MPI: %s\n", wrong);
  std::_Exit(3);
}

void called() {
  if (caller == std::thread::id()) caller = std::this_thread::get_id();
  check(caller == std::this_thread::get_id(), "two threads call");
}

int begin(bool is_send, void* bytes, int size, int peer, int tag, void** request) {
  called();
  check(peer == 0, "no such rank");
  auto* made = new Request{is_send, static_cast<char*>(bytes), size, tag, false};
  under_way.push_back(made);
  auto same = [&](Request* r) { return r->tag == tag && r->is_send == is_send; };
  check(std::count_if(under_way.begin(), under_way.end(), same) <= 2, "more than two under way");
  *request = made;
  return 0;
}

int over(void** request) {
  *request = new Request{false, nullptr, 0, -1, true};
  under_way.push_back(static_cast<Request*>(*request));
  return 0;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default"))) int

EXPORTED MPI_Abi_get_version(int* major, int* minor) {
  *major = 1;
  *minor = 0;
  return 0;
}
EXPORTED MPI_Initialized(int* flag) { return *flag = 0; }
EXPORTED MPI_Finalized(int* flag) { return *flag = 0; }
EXPORTED MPI_Query_thread(int* level) { return *level = 0; }
EXPORTED MPI_Init_thread(int*, char***, int, int* level) {
  called();
  return *level = 0;  // MPI_THREAD_SINGLE
}
EXPORTED MPI_Finalize() {
  called();
  check(under_way.empty(), "finalized with messages under way");
  std::puts("finalized");
  return 0;
}
EXPORTED MPI_Comm_rank(void*, int* rank) { return *rank = 0; }
EXPORTED MPI_Comm_size(void*, int* size) {
  *size = 1;
  return 0;
}
EXPORTED MPI_Comm_idup(void*, void** made, void** request) {
  called();
  *made = &under_way;
  return over(request);
}
EXPORTED MPI_Comm_set_errhandler(void*, void*) { return 0; }
EXPORTED MPI_Ibcast(void*, int, void*, int, void*, void** request) { return over(request); }
EXPORTED MPI_Isend(const void* bytes, int size, void*, int peer, int tag, void*, void** request) {
  return begin(true, static_cast<char*>(const_cast<void*>(bytes)), size, peer, tag, request);
}
EXPORTED MPI_Irecv(void* bytes, int size, void*, int peer, int tag, void*, void** request) {
  return begin(false, static_cast<char*>(bytes), size, peer, tag, request);
}
EXPORTED MPI_Testsome(int count, void** requests, int* ended, int* places, Status* statuses) {
  called();
  std::set<int> late;  // tags of which no further message arrives now
  for (Request* into : under_way) {
    if (into->is_send || into->is_over || late.count(into->tag)) continue;
    auto from = std::find_if(under_way.begin(), under_way.end(), [&](Request* r) {
      return r->is_send && !r->is_over && r->tag == into->tag;
    });
    if (from == under_way.end() || chance() % 3 == 0) {
      late.insert(into->tag);
      continue;
    }
    check((*from)->size <= into->size, "a message is longer than its receive");
    std::memcpy(into->bytes, (*from)->bytes, size_t((*from)->size));
    into->size = (*from)->size;
    into->is_over = (*from)->is_over = true;
  }
  *ended = 0;
  for (int i = 0; i < count; ++i) {
    auto* request = static_cast<Request*>(requests[i]);
    if (requests[i] == kNone || !request->is_over || chance() % 4 == 0) continue;
    statuses[*ended] = {0, request->tag, 0, {request->size}};
    places[(*ended)++] = i;
    under_way.erase(std::find(under_way.begin(), under_way.end(), request));
    delete request;
    requests[i] = kNone;
  }
  return 0;
}
EXPORTED MPI_Get_count(const Status* status, void*, int* count) {
  *count = status->internal[0];
  return 0;
}
EXPORTED MPI_Cancel(void** request) {
  static_cast<Request*>(*request)->is_over = true;
  return 0;
}
EXPORTED MPI_Error_string(int, char* text, int* length) { return *length = text[0] = 0; }
