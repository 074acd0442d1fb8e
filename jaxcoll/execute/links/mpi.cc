// Links by MPI's point to point, over whatever network it drives.
//
// MPI is found in the process or by its name when it is first needed, and called by the standard
// ABI: this file is compiled without a header of MPI, and what it declares is that of the MPI
// standard 5.0, chapter 21 (https://www.mpi-forum.org/docs/mpi-5.0/mpi50-report.pdf).
//
// A link is a stream that is cut into pieces. Two pieces of it are on their way at most: with more,
// links that share a cable slow one another down. A piece lies in memory of the link, never in that
// of a call, because MPI may write to what it was given long after a link has failed. Receives are
// asked for before anything arrives, so no piece waits for a thread to wake up.
//
// One thread makes all calls of MPI, so it need not allow more. While nothing arrives this thread
// sleeps: for a sixteenth of the time for which nothing has, up to a millisecond, and when it has
// been idle for seconds, a thousandth of these. A call that waits for MPI would spin, and take the
// processor from the additions.
//
// MPI itself may not notice that a process has died, so sockets between the processes stay open:
// the end of such a socket is the end of its links.

#include <dlfcn.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

#include "transport.h"

namespace links {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// ---------------------------------------------------------------------------- the ABI

// Handles are pointers, and those of constants are small numbers.
using Handle = void*;
Handle constant(uintptr_t number) { return reinterpret_cast<Handle>(number); }
const Handle kWorld = constant(0x101);         // MPI_COMM_WORLD
const Handle kSelf = constant(0x102);          // MPI_COMM_SELF
const Handle kErrorsReturn = constant(0x143);  // MPI_ERRORS_RETURN
const Handle kNoRequest = constant(0x180);     // MPI_REQUEST_NULL
const Handle kByte = constant(0x247);          // MPI_BYTE
constexpr int kMultiple = 4096;       // MPI_THREAD_MULTIPLE
constexpr int kUndefined = -32766;    // MPI_UNDEFINED
constexpr int kLongestError = 512;    // MPI_MAX_ERROR_STRING
constexpr int kMostTag = 32767;       // MPI_TAG_UB is at least this
struct Status {
  int source, tag, error, internal[5];
};

struct Library {
  int (*MPI_Abi_get_version)(int*, int*);
  int (*MPI_Initialized)(int*);
  int (*MPI_Finalized)(int*);
  int (*MPI_Query_thread)(int*);
  int (*MPI_Init_thread)(int*, char***, int, int*);
  int (*MPI_Finalize)();
  int (*MPI_Comm_rank)(Handle, int*);
  int (*MPI_Comm_size)(Handle, int*);
  int (*MPI_Comm_idup)(Handle, Handle*, Handle*);
  int (*MPI_Comm_set_errhandler)(Handle, Handle);
  int (*MPI_Ibcast)(void*, int, Handle, int, Handle, Handle*);
  int (*MPI_Isend)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*MPI_Irecv)(void*, int, Handle, int, int, Handle, Handle*);
  int (*MPI_Testsome)(int, Handle*, int*, int*, Status*);
  int (*MPI_Get_count)(const Status*, Handle, int*);
  int (*MPI_Cancel)(Handle*);
  int (*MPI_Error_string)(int, char*, int*);
};

// What is wrong with a library, or "".
std::string load(const char* path, Library* into) {
  void* handle = dlopen(path, RTLD_NOW);
  if (!handle) {
    const char* error = dlerror();
    return std::string(path) + " cannot be loaded: " + (error ? error : "");
  }
  std::string missing;
  auto get = [&](auto& function, const char* name) {
    void* symbol = dlsym(handle, name);
    if (!symbol && missing.empty()) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
#define JAXCOLL_GET(name) get(into->name, #name)
  JAXCOLL_GET(MPI_Abi_get_version);
  JAXCOLL_GET(MPI_Initialized);
  JAXCOLL_GET(MPI_Finalized);
  JAXCOLL_GET(MPI_Query_thread);
  JAXCOLL_GET(MPI_Init_thread);
  JAXCOLL_GET(MPI_Finalize);
  JAXCOLL_GET(MPI_Comm_rank);
  JAXCOLL_GET(MPI_Comm_size);
  JAXCOLL_GET(MPI_Comm_idup);
  JAXCOLL_GET(MPI_Comm_set_errhandler);
  JAXCOLL_GET(MPI_Ibcast);
  JAXCOLL_GET(MPI_Isend);
  JAXCOLL_GET(MPI_Irecv);
  JAXCOLL_GET(MPI_Testsome);
  JAXCOLL_GET(MPI_Get_count);
  JAXCOLL_GET(MPI_Cancel);
  JAXCOLL_GET(MPI_Error_string);
#undef JAXCOLL_GET
  if (!missing.empty()) return std::string(path) + " has no " + missing + " of the MPI-5 ABI";
  int major = 0, minor = 0;
  if (into->MPI_Abi_get_version(&major, &minor) || major != 1) {
    return std::string(path) + " has version " + std::to_string(major) +
           " of the MPI ABI, and this library knows version 1";
  }
  return "";
}

// ---------------------------------------------------------------------------- wires

// Bytes of a piece, large enough that it takes longer than the thread's shortest sleep; tests have
// small ones.
#ifndef JAXCOLL_PIECE_BYTES
#define JAXCOLL_PIECE_BYTES (1 << 18)
#endif
constexpr size_t kPieceBytes = JAXCOLL_PIECE_BYTES;
constexpr size_t kPieces = 2;

struct Piece {
  std::vector<char> bytes = std::vector<char>(kPieceBytes);
  size_t size = 0, at = 0;  // bytes in it; those that have been read
  bool is_away = false;     // MPI has it
};

class MpiWire;
struct Work {  // for MPI
  MpiWire* wire;
  Piece* piece;
};

// The thread that calls MPI.
class Caller {
 public:
  static Caller& get() {
    static Caller* caller = new Caller;  // its thread outlives static destructors
    return *caller;
  }

  std::string join(const char* path, double timeout, World* joined);
  void leave();
  int new_tag();

  void keep(std::shared_ptr<MpiWire> wire) {
    std::lock_guard<std::mutex> lock(mutex);
    wires_.push_back(std::move(wire));
  }
  // With the lock held.
  void give(Work work) {
    work.piece->is_away = true;
    given_.push_back(work);
    asked_.notify_one();
  }

  std::mutex mutex;  // of the wires, too

 private:
  enum State { kNew, kJoining, kJoined, kFailed, kLeaving, kLeft };

  void run(std::string path);
  std::string initialize(const std::string& path);
  std::string wait_for(Handle request);
  std::string text(int code);
  void serve();
  void begin(const Work& work);
  void test();
  void end_all();
  void cancel();
  Clock::duration nap() const;

  Library mpi_{};
  Handle communicator_ = nullptr;
  bool is_own_ = false;  // this library has initialized MPI, and finalizes it
  World world_;
  std::string error_;
  State state_ = kNew;
  std::condition_variable asked_, answered_;
  std::vector<Work> given_;
  std::vector<std::shared_ptr<MpiWire>> wires_;  // for ever, as MPI may still write to them
  int tags_ = 0;
  // What MPI has: requests, and what each is for.
  std::vector<Handle> requests_;
  std::vector<Work> works_;
  std::vector<int> places_;  // of what has ended, among them
  std::vector<Status> statuses_;
  Clock::time_point moved_ = Clock::now();
  std::string failed_;  // by which error
};

class MpiWire : public Wire {
 public:
  MpiWire(int socket, int rank, int tag, bool is_sender)
      : peer(rank), tag(tag), is_sender(is_sender), socket_(socket) {}

  void begin() {
    std::thread([this] {  // the other end never says anything there
      char unused;
      // Sockets have time limits from when the processes met.
      while (::recv(socket_, &unused, 1, 0) < 0 && (errno == EINTR || errno == EAGAIN)) {
      }
      fail("the process at its other end has ended");
    }).detach();
    if (is_sender) return;
    std::lock_guard<std::mutex> lock(Caller::get().mutex);
    for (Piece& piece : pieces_) Caller::get().give({this, &piece});
  }

  bool send(const void* data, size_t bytes, bool is_last) override {
    const char* from = static_cast<const char*>(data);
    while (true) {
      Piece& piece = pieces_[now_];
      if (!is_here(piece) || is_ended_) return false;
      size_t some = std::min(bytes, kPieceBytes - piece.size);
      if (some) std::memcpy(piece.bytes.data() + piece.size, from, some);
      piece.size += some;
      from += some;
      bytes -= some;
      if (piece.size == kPieceBytes || (is_last && !bytes && piece.size)) pass_on(piece);
      if (!bytes) return true;
    }
  }

  bool receive(void* data, size_t bytes) override {
    char* into = static_cast<char*>(data);
    while (bytes) {
      Piece& piece = pieces_[now_];
      if (!is_here(piece)) return false;
      size_t some = std::min(bytes, piece.size - piece.at);
      std::memcpy(into, piece.bytes.data() + piece.at, some);
      piece.at += some;
      into += some;
      bytes -= some;
      if (piece.at == piece.size) pass_on(piece);
    }
    return true;
  }

  void close() override { ::shutdown(socket_, SHUT_RDWR); }

  std::string why() override {
    std::lock_guard<std::mutex> lock(Caller::get().mutex);
    return why_;
  }

  void fail(const std::string& why) {
    std::lock_guard<std::mutex> lock(Caller::get().mutex);
    end(why);
  }
  // With the lock held: the link has ended; MPI is done with a piece.
  void end(const std::string& why) {
    if (!is_ended_) why_ = why;
    is_ended_ = true;
    change_.notify_all();
  }
  bool is_ended() const { return is_ended_; }
  void took(Piece& piece, size_t size) {
    piece.is_away = false;
    piece.size = size;
    piece.at = 0;
    change_.notify_all();
  }

  const int peer, tag;
  const bool is_sender;

 private:
  // Waits until MPI is done with a piece; false if the link ends before that.
  bool is_here(const Piece& piece) {
    std::unique_lock<std::mutex> lock(Caller::get().mutex);
    change_.wait(lock, [&] { return is_ended_ || !piece.is_away; });
    return !piece.is_away;
  }
  void pass_on(Piece& piece) {
    std::lock_guard<std::mutex> lock(Caller::get().mutex);
    Caller::get().give({this, &piece});
    now_ = (now_ + 1) % kPieces;
  }

  int socket_;
  std::array<Piece, kPieces> pieces_;
  size_t now_ = 0;
  std::condition_variable change_;
  std::atomic<bool> is_ended_{false};
  std::string why_;
};

// ---------------------------------------------------------------------------- joining

std::string Caller::join(const char* path, double timeout, World* joined) {
  std::unique_lock<std::mutex> lock(mutex);
  if (state_ == kNew) {
    state_ = kJoining;
    std::thread([this, name = std::string(path)] { run(name); }).detach();
  }
  auto is_over = [&] { return state_ != kJoining; };
  if (!answered_.wait_for(lock, std::chrono::duration<double>(timeout), is_over)) {
    state_ = kFailed;
    error_ = "MPI did not start within " + std::to_string(int(timeout)) +
             " s; do all processes of its job run this program?";
  }
  *joined = world_;
  return error_;
}

void Caller::run(std::string path) {
  std::string error = initialize(path);
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (state_ != kJoining) return;  // nobody waits any more
    state_ = error.empty() ? kJoined : kFailed;
    error_ = error;
    answered_.notify_all();
  }
  if (error.empty()) serve();
}

std::string Caller::initialize(const std::string& path) {
  if (std::string error = load(path.c_str(), &mpi_); !error.empty()) return error;
  int is_on = 0, is_off = 0, level = 0, rank = 0, size = 0;
  mpi_.MPI_Initialized(&is_on);
  mpi_.MPI_Finalized(&is_off);
  if (is_off) return "MPI has been finalized in this process";
  if (is_on) {
    mpi_.MPI_Query_thread(&level);
    // The program may call MPI beside this thread.
    if (level < kMultiple) {
      return "MPI was initialized in this process without MPI_THREAD_MULTIPLE";
    }
  } else {
    // What it grants is enough, whatever it is: this thread makes all calls.
    if (int code = mpi_.MPI_Init_thread(nullptr, nullptr, kMultiple, &level)) {
      return "MPI_Init_thread failed with code " + std::to_string(code);
    }
    is_own_ = true;
    // Errors of requests are those of no communicator, which end the process unless told otherwise.
    for (Handle each : {kWorld, kSelf}) mpi_.MPI_Comm_set_errhandler(each, kErrorsReturn);
  }
  // A communicator of its own: the program's messages do not mix with those of links.
  Handle request = kNoRequest;
  if (int code = mpi_.MPI_Comm_idup(kWorld, &communicator_, &request)) return text(code);
  if (std::string error = wait_for(request); !error.empty()) return error;
  mpi_.MPI_Comm_set_errhandler(communicator_, kErrorsReturn);
  mpi_.MPI_Comm_rank(communicator_, &rank);
  mpi_.MPI_Comm_size(communicator_, &size);
  std::random_device chance;
  int64_t name = int64_t((uint64_t{chance()} << 31) ^ chance());
  request = kNoRequest;
  if (int code = mpi_.MPI_Ibcast(&name, sizeof name, kByte, 0, communicator_, &request)) {
    return text(code);
  }
  if (std::string error = wait_for(request); !error.empty()) return error;
  std::lock_guard<std::mutex> lock(mutex);
  world_ = {rank, size, name};
  return "";
}

std::string Caller::wait_for(Handle request) {
  int count = 0, place = 0;
  Status status{};
  for (;; std::this_thread::sleep_for(1ms)) {
    if (int code = mpi_.MPI_Testsome(1, &request, &count, &place, &status)) return text(code);
    if (count) return "";
  }
}

std::string Caller::text(int code) {
  char said[kLongestError] = "";
  int length = 0;
  mpi_.MPI_Error_string(code, said, &length);
  return std::string("MPI: ") + said;
}

// ---------------------------------------------------------------------------- serving

void Caller::serve() {
  std::vector<Work> given;
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex);
      auto is_asked = [&] { return !given_.empty() || state_ == kLeaving; };
      if (requests_.empty()) asked_.wait(lock, is_asked);
      else asked_.wait_for(lock, nap(), is_asked);
      given.swap(given_);
      if (given.empty() && state_ == kLeaving &&
          std::none_of(works_.begin(), works_.end(), [](Work& w) { return w.wire->is_sender; })) {
        break;
      }
    }
    for (const Work& work : given) begin(work);
    if (!given.empty()) moved_ = Clock::now();
    given.clear();
    if (failed_.empty()) test();
    if (!failed_.empty()) return end_all();
  }
  cancel();
  if (is_own_) mpi_.MPI_Finalize();
  std::lock_guard<std::mutex> lock(mutex);
  state_ = kLeft;
  answered_.notify_all();
}

Clock::duration Caller::nap() const {
  Clock::duration still = Clock::now() - moved_;
  return std::max<Clock::duration>(
      {20us, std::min<Clock::duration>(still / 16, 1ms), std::min<Clock::duration>(still / 1000, 50ms)});
}

void Caller::begin(const Work& work) {
  MpiWire& wire = *work.wire;
  Handle request = kNoRequest;
  int code = wire.is_sender
                 ? mpi_.MPI_Isend(work.piece->bytes.data(), int(work.piece->size), kByte, wire.peer,
                                  wire.tag, communicator_, &request)
                 : mpi_.MPI_Irecv(work.piece->bytes.data(), int(kPieceBytes), kByte, wire.peer,
                                  wire.tag, communicator_, &request);
  if (code) {
    failed_ = text(code);
    return;
  }
  requests_.push_back(request);
  works_.push_back(work);
}

void Caller::test() {
  if (requests_.empty()) return;
  places_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  int code = mpi_.MPI_Testsome(int(requests_.size()), requests_.data(), &count, places_.data(),
                               statuses_.data());
  if (code) {
    failed_ = text(code);
    return;
  }
  if (count == kUndefined || count <= 0) return;
  moved_ = Clock::now();
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (int i = 0; i < count; ++i) {
      const Work& work = works_[size_t(places_[size_t(i)])];
      const Status& status = statuses_[size_t(i)];
      if (work.wire->is_ended()) continue;  // nobody waits for what it was
      int size = 0;
      if (!work.wire->is_sender) mpi_.MPI_Get_count(&status, kByte, &size);
      work.wire->took(*work.piece, size_t(size));
    }
  }
  size_t left = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == kNoRequest) continue;
    requests_[left] = requests_[i];
    works_[left++] = works_[i];
  }
  requests_.resize(left);
  works_.resize(left);
}

// After an error it is not known which requests MPI still has, and to name one of these ends the
// process. So MPI is called no more. If a process has died, its sockets say so at once, and the
// others are not blamed for it.
void Caller::end_all() {
  {
    std::lock_guard<std::mutex> lock(mutex);
    state_ = kFailed;
    answered_.notify_all();
  }
  std::this_thread::sleep_for(1s);
  std::lock_guard<std::mutex> lock(mutex);
  for (auto& wire : wires_) wire->end(failed_);
}

// Takes back the receives to which nothing will come.
void Caller::cancel() {
  for (const Work& work : works_) work.wire->fail("this process leaves MPI");
  for (Handle& request : requests_) mpi_.MPI_Cancel(&request);
  for (auto until = Clock::now() + 1s; !requests_.empty() && failed_.empty() && Clock::now() < until;
       test()) {
    std::this_thread::sleep_for(20us);
  }
}

void Caller::leave() {
  std::unique_lock<std::mutex> lock(mutex);
  if (state_ != kJoined) return;
  state_ = kLeaving;
  asked_.notify_one();
  // Until all processes of the job are here, as every program of MPI ends.
  answered_.wait(lock, [&] { return state_ != kLeaving; });
}

int Caller::new_tag() {
  std::lock_guard<std::mutex> lock(mutex);
  return tags_ <= kMostTag ? tags_++ : -1;
}

}  // namespace

std::string join_world(const char* library, double timeout, World* joined) {
  return Caller::get().join(library, timeout, joined);
}

void leave_world() { Caller::get().leave(); }

int new_tag() { return Caller::get().new_tag(); }

std::shared_ptr<Wire> over_mpi(int socket, int rank, int tag, bool is_sender) {
  auto wire = std::make_shared<MpiWire>(socket, rank, tag, is_sender);
  Caller::get().keep(wire);
  wire->begin();
  return wire;
}

}  // namespace links
