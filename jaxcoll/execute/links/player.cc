// Plays a rank's part of a schedule: every link carries its messages as soon as they are there.
//
// An FFI call of XLA for CPU starts a *play*; threads of the links carry it on, and the call's
// future becomes available with the last message. Nothing waits for a step to end:
//
// - a message leaves when its rows hold what they must: all that arrives there in earlier steps;
// - a row that arrives is stored or added when what was there has left: all sends of this row in
//   steps up to its own, and, where it is stored, all that arrived there before.
//
// Python counts these conditions (program.py), so that the player compares numbers: `got` and `sent`
// of a row against what an operation needs. That no circle of waits exists is seen thus: of all
// operations that have not happened, on all ranks, take one of the least step, a send before an
// arrival. All that it needs has happened; and a link's earlier messages, whose steps are less, have
// been taken from it. So it can happen.
//
// A link is a connection from one device to another and a thread at each of its ends. Processes meet
// over a socket, which then carries the messages itself, or leaves them to MPI where one job of it
// holds both processes; its end is the link's in either case (transport.h). Each message says to which play it belongs, and waits at its end for that play to begin there. Programs are the
// same on all ranks, so a play that has begun on one begins on all. Two plays that were under way
// together on one link could wait for each other for ever, each behind a message of the other. So
// the calls of a block of a program depend on one another (`after`), and those of another block, a
// loop's body say, which may run beside them, have links of their own, a *lane*.
//
// The engine is process-wide and lives as long as the process; after an error it refuses all plays,
// since its links are in the middle of messages. It tells its neighbours why, who tell theirs, and
// closes its links.

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <complex>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "transport.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Clock = std::chrono::steady_clock;
using WirePtr = std::shared_ptr<links::Wire>;

// Of this file, which build.py gives; a peer with another one is refused.
#ifndef JAXCOLL_SOURCE
#define JAXCOLL_SOURCE 0
#endif
constexpr uint32_t kVersion = JAXCOLL_SOURCE;
constexpr uint32_t kMessage = 0x4a434d31;  // begins a message: links in the middle of one show
constexpr int kTokenBytes = 32;

// ---------------------------------------------------------------------------- adding

template <typename T>
struct Sum {
  static T of(T a, T b) { return a + b; }
};
template <typename T>
bool is_nan(T a) {
  return a != a;
}
template <typename T>
struct Max {
  static T of(T a, T b) { return is_nan(a) ? a : is_nan(b) ? b : a < b ? b : a; }
};
template <typename T>
struct Min {
  static T of(T a, T b) { return is_nan(a) ? a : is_nan(b) ? b : b < a ? b : a; }
};

template <typename T, template <typename> class Op>
void combine(char* into, const char* from, size_t bytes) {
  T* a = reinterpret_cast<T*>(into);
  const T* b = reinterpret_cast<const T*>(from);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) a[i] = Op<T>::of(a[i], b[i]);
}

// bfloat16 is the upper half of a float; sums are rounded to the nearest, ties to even.
float wide(uint16_t half) {
  uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (is_nan(value)) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
template <template <typename> class Op>
void combine_bf16(char* into, const char* from, size_t bytes) {
  uint16_t* a = reinterpret_cast<uint16_t*>(into);
  const uint16_t* b = reinterpret_cast<const uint16_t*>(from);
  for (size_t i = 0; i < bytes / 2; ++i) a[i] = narrow(Op<float>::of(wide(a[i]), wide(b[i])));
}

using Combine = void (*)(char*, const char*, size_t);

template <typename T>
Combine ordered(int op) {
  return op == 0 ? combine<T, Sum> : op == 1 ? combine<T, Max> : combine<T, Min>;
}

// `nullptr` where numbers of the type cannot be combined so; program.py offers the same types.
Combine combine_of(ffi::DataType type, int op) {
  switch (type) {
    case ffi::DataType::F32: return ordered<float>(op);
    case ffi::DataType::F64: return ordered<double>(op);
    case ffi::DataType::BF16:
      return op == 0 ? combine_bf16<Sum> : op == 1 ? combine_bf16<Max> : combine_bf16<Min>;
#ifdef __FLT16_MAX__
    case ffi::DataType::F16: return ordered<_Float16>(op);
#endif
    case ffi::DataType::S8: return ordered<int8_t>(op);
    case ffi::DataType::S16: return ordered<int16_t>(op);
    case ffi::DataType::S32: return ordered<int32_t>(op);
    case ffi::DataType::S64: return ordered<int64_t>(op);
    case ffi::DataType::U8: return ordered<uint8_t>(op);
    case ffi::DataType::U16: return ordered<uint16_t>(op);
    case ffi::DataType::U32: return ordered<uint32_t>(op);
    case ffi::DataType::U64: return ordered<uint64_t>(op);
    case ffi::DataType::C64: return op == 0 ? combine<std::complex<float>, Sum> : nullptr;
    case ffi::DataType::C128: return op == 0 ? combine<std::complex<double>, Sum> : nullptr;
    default: return nullptr;
  }
}

// ---------------------------------------------------------------------------- programs

struct Row {
  int32_t row, add, got, sent;  // what must have arrived in, and left, the row before this happens
};
struct Message {
  int32_t step;
  std::vector<Row> rows;
};
struct Direction {  // a link's messages in their order
  int64_t peer_rank, peer;  // its rank in the collective, its device
  std::vector<Message> messages;
  size_t arrived = 0;  // of the messages, where they arrive
};

// Which play a message belongs to: an instruction of a program, and how often that has run before.
struct Tag {
  uint64_t program;
  uint32_t number, count;
  bool operator<(const Tag& o) const {
    return std::tie(program, number, count) < std::tie(o.program, o.number, o.count);
  }
};

struct Header {
  uint32_t magic, message;
  uint64_t program;
  uint32_t number, count;
  uint64_t bytes;
};

// ---------------------------------------------------------------------------- what is recorded

// Nanoseconds of the machine's clock, which the ranks of several machines share as far as they
// share a time of day.
int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A message at one of its ends, or a whole play; trace.py names the columns. A message that leaves
// is asked for when its link turns to it, begins when its rows hold what they must, and ends when
// the link has taken it. One that arrives begins with its header and ends with its last row.
enum What : int64_t { kLeaves, kArrives, kPlays };
using Event = std::array<int64_t, 14>;
constexpr size_t kMostEvents = size_t{1} << 21;

struct Recorder {
  std::atomic<bool> on{false};
  std::mutex mutex;
  std::vector<Event> events;

  void add(const Event& event) {
    std::lock_guard<std::mutex> lock(mutex);
    if (on && events.size() < kMostEvents) events.push_back(event);
  }
};

struct Play {
  Tag tag;
  int64_t device, lane;
  int rank;
  std::vector<Direction> out, in;
  std::vector<char> own;  // where the rows do not lie in the result
  char* rows = nullptr;
  size_t row_bytes = 0;
  Combine combine = nullptr;
  std::vector<int32_t> output;
  char* result = nullptr;
  std::function<void(const std::string& why)> ended;  // called once; "" if all is well
  double timeout = 60;

  std::mutex mutex;
  std::condition_variable change;
  std::vector<int32_t> got, sent;
  std::vector<char> busy;  // rows that something is being added to
  std::vector<char> has;   // rows that hold something: what is added to another one is stored
  size_t left = 0;         // messages that have not left or arrived
  bool is_over = false;    // by an error
  int users = 0;           // threads that read or write rows: XLA frees these once it has ended
  int64_t begun = 0;       // by the machine's clock
  Clock::time_point moved = Clock::now();

  char* at(int32_t row) { return rows + size_t(row) * row_bytes; }
  void leave() {
    std::lock_guard<std::mutex> lock(mutex);
    --users;
    change.notify_all();
  }
};
using PlayPtr = std::shared_ptr<Play>;

// ---------------------------------------------------------------------------- sockets

bool write_all(int fd, const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes) {
    ssize_t k = ::send(fd, p, bytes, MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    p += k;
    bytes -= size_t(k);
  }
  return true;
}

bool read_all(int fd, void* data, size_t bytes) {
  char* p = static_cast<char*>(data);
  while (bytes) {
    ssize_t k = ::recv(fd, p, bytes, 0);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    p += k;
    bytes -= size_t(k);
  }
  return true;
}

void prepare(int fd, double timeout) {
  int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
#ifdef TCP_USER_TIMEOUT
  // Without it a cable that is cut is noticed after a quarter of an hour.
  unsigned milliseconds = unsigned(timeout * 1000);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
#endif
}

// A link whose socket carries its messages.
class SocketWire : public links::Wire {
 public:
  explicit SocketWire(int fd) : fd_(fd) {}
  bool send(const void* data, size_t bytes, bool) override {
    return write_all(fd_, data, bytes) || is_lost();
  }
  bool receive(void* data, size_t bytes) override { return read_all(fd_, data, bytes) || is_lost(); }
  void close() override { ::shutdown(fd_, SHUT_RDWR); }
  std::string why() override { return std::strerror(code_); }

 private:
  bool is_lost() {
    code_ = errno;
    return false;
  }

  int fd_;
  std::atomic<int> code_{0};
};

struct Hello {  // what a connection begins with
  uint32_t version;
  char token[kTokenBytes];
  int64_t from, to, lane;  // or, in the lane of news, `to` is the length of why `from` has failed
  int32_t rank, tag;       // of the sender in MPI, and of the link there; or -1
};
constexpr int64_t kNews = -1;
constexpr int64_t kLongestNews = 2000;

struct Address {
  std::string host, port, token;
  int rank = -1;  // in MPI, if that carries messages to it
};

// ---------------------------------------------------------------------------- the engine

class Engine {
 public:
  static Engine& get() {
    static Engine* engine = new Engine;  // its threads outlive static destructors
    return *engine;
  }

  // Listen at a host's address; the port, or 0 with `error` said.
  int listen_at(const char* host, const char* token, std::string* error) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (port_) return port_;
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    if (int code = ::getaddrinfo(host, "0", &hints, &found)) {
      *error = std::string("cannot resolve ") + host + ": " + ::gai_strerror(code);
      return 0;
    }
    int fd = ::socket(found->ai_family, SOCK_STREAM, 0);
    bool ok = fd >= 0 && ::bind(fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(fd, 1024) == 0;
    int code = errno;
    ::freeaddrinfo(found);
    sockaddr_storage at{};
    socklen_t size = sizeof at;
    if (!ok || ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size)) {
      if (fd >= 0) ::close(fd);
      *error = std::string("cannot listen at ") + host + ": " + std::strerror(code);
      return 0;
    }
    port_ = ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&at)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&at)->sin_port);
    token_ = token;
    std::thread([this, fd] { accept_links(fd); }).detach();
    std::thread([this] { watch(); }).detach();
    return port_;
  }

  void know(int64_t device, Address address) {
    std::lock_guard<std::mutex> lock(mutex_);
    addresses_[device] = std::move(address);
  }

  // Joins the other processes of MPI; what is wrong, or "".
  std::string join(const char* library, double timeout, links::World* joined) {
    std::string error = links::join_world(library, timeout, joined);
    std::lock_guard<std::mutex> lock(mutex_);
    rank_ = int(joined->rank);
    return error;
  }

  // Ends what MPI carries, together with the other processes; after an error there are none to
  // wait for.
  void leave() {
    if (!is_broken()) links::leave_world();
  }

  Recorder recorder;

  // Seconds that others have waited for plays to begin here, the longest of them, and for how many
  // plays.
  void lateness(double* into) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < 3; ++i) into[i] = late_[size_t(i)];
  }

  // Begins a play; its promise is kept later, unless `error` is said now.
  std::string begin(const PlayPtr& play) {
    std::unique_lock<std::mutex> lock(mutex_);
    play->begun = now();
    if (!broken_.empty()) return broken_;
    play->tag.count = counts_[{play->device, play->tag.program, play->tag.number}]++;
    is_late(*play);
    plays_[{play->device, play->tag}] = play;
    // Of several processes that have ended the first: the others may have ended because of it.
    const Direction* gone = nullptr;
    size_t first = ended_.size();
    for (auto& way : play->in) {
      auto at = ended_.find({way.peer, play->device});
      if (at == ended_.end() || at->second >= first) continue;
      first = at->second;
      gone = &way;
    }
    if (gone) {
      plays_.erase({play->device, play->tag});
      return "rank " + std::to_string(play->rank) + " needs rank " +
             std::to_string(gone->peer_rank) + " (device " + std::to_string(gone->peer) +
             "), whose process has ended or failed";
    }
    for (auto& way : play->out) {
      if (!addresses_.count(way.peer)) {
        plays_.erase({play->device, play->tag});
        return "no address of device " + std::to_string(way.peer) +
               " is known here: the program was not started by jaxcoll's Python";
      }
      auto& link = out_[{play->device, way.peer, play->lane}];
      if (!link) {
        link = std::make_unique<Out>();
        Out* started = link.get();
        int64_t from = play->device, to = way.peer, lane = play->lane;
        double timeout = play->timeout;
        std::thread([=, this] { carry(*started, from, to, lane, timeout); }).detach();
      }
      std::lock_guard<std::mutex> inner(link->mutex);
      link->queue.push_back({play, &way});
      link->change.notify_one();
    }
    begun_.notify_all();
    return "";
  }

 private:
  struct Job {
    PlayPtr play;
    Direction* way;
  };
  struct Out {
    std::mutex mutex;
    std::condition_variable change;
    std::deque<Job> queue;
  };

  // -------------------------------------------------------------------- sending

  void carry(Out& link, int64_t from, int64_t to, int64_t lane, double timeout) {
    WirePtr wire;
    while (true) {
      Job job;
      {
        std::unique_lock<std::mutex> lock(link.mutex);
        link.change.wait(lock, [&] { return !link.queue.empty(); });
        job = link.queue.front();
        link.queue.pop_front();
      }
      Play& play = *job.play;
      for (size_t m = 0; m < job.way->messages.size(); ++m) {
        Message& message = job.way->messages[m];
        int64_t asked = now();
        {
          std::unique_lock<std::mutex> lock(play.mutex);
          play.change.wait(lock, [&] {
            return play.is_over || std::all_of(message.rows.begin(), message.rows.end(), [&](Row& r) {
                     return play.got[size_t(r.row)] >= r.got;
                   });
          });
          if (play.is_over) break;
        }
        if (!wire) {
          std::string error;
          wire = connected(from, to, lane, timeout, &error);
          if (!wire) {
            fail("rank " + std::to_string(play.rank) + " cannot reach rank " +
                 std::to_string(job.way->peer_rank) + " (device " + std::to_string(to) +
                 ") for step " + std::to_string(message.step) + ": " + error);
            break;
          }
        }
        {
          std::lock_guard<std::mutex> lock(play.mutex);
          if (play.is_over) break;
          ++play.users;
        }
        int64_t begun = now();
        Header header{kMessage,      uint32_t(m),   play.tag.program, play.tag.number,
                      play.tag.count, uint64_t(message.rows.size()) * play.row_bytes};
        size_t left = message.rows.size();
        bool ok = wire->send(&header, sizeof header, !left);
        for (Row& r : message.rows) {
          if (!ok) break;
          ok = wire->send(play.at(r.row), play.row_bytes, !--left);
          std::lock_guard<std::mutex> lock(play.mutex);
          if (ok) ++play.sent[size_t(r.row)];
          play.moved = Clock::now();
          play.change.notify_all();
        }
        play.leave();
        if (!ok) {
          fail("rank " + std::to_string(play.rank) + " lost its link to rank " +
               std::to_string(job.way->peer_rank) + " (device " + std::to_string(to) +
               ") while it sent step " + std::to_string(message.step) + ": " + wire->why());
          break;
        }
        record(play, kLeaves, *job.way, m, asked, begun);
        done(job.play);
      }
    }
  }

  WirePtr connected(int64_t from, int64_t to, int64_t lane, double timeout, std::string* error) {
    Address address;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      address = addresses_[to];
    }
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (int code = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found)) {
      *error = address.host + ": " + ::gai_strerror(code);
      return nullptr;
    }
    auto until = Clock::now() + std::chrono::duration<double>(timeout);
    int fd = -1;
    // A peer that is busy refuses for a moment; one that is gone does so until the end.
    while (true) {
      fd = ::socket(found->ai_family, SOCK_STREAM, 0);
      if (fd < 0) break;
      prepare(fd, timeout);
      timeval limit{time_t(timeout), 0};
      ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      if (::connect(fd, found->ai_addr, found->ai_addrlen) == 0) break;
      int code = errno;
      ::close(fd);
      fd = -1;
      errno = code;
      if (Clock::now() >= until || (code != ECONNREFUSED && code != ECONNRESET && code != EAGAIN)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (is_broken()) break;
    }
    int code = errno;
    ::freeaddrinfo(found);
    if (fd < 0) {
      *error = address.host + ":" + address.port + ": " + std::strerror(code);
      return nullptr;
    }
    Hello hello{};
    hello.version = kVersion;
    std::memcpy(hello.token, address.token.data(), std::min<size_t>(kTokenBytes, address.token.size()));
    hello.from = from;
    hello.to = to;
    hello.lane = lane;
    bool is_by_mpi = address.rank >= 0;
    hello.rank = is_by_mpi ? rank_ : -1;
    hello.tag = is_by_mpi ? links::new_tag() : -1;
    if (is_by_mpi && hello.tag < 0) {
      *error = "this process has more links than MPI has tags";
      ::close(fd);
      return nullptr;
    }
    char answer = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      neighbours_.insert(to);
    }
    timeval limit{time_t(std::max(1.0, timeout)), 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (!write_all(fd, &hello, sizeof hello) || !read_all(fd, &answer, 1) || answer != 'y') {
      *error = address.host + ":" + address.port + " refused this process (" +
               (answer == 'v' ? "it has another version of jaxcoll"
                : answer == 't' ? "it is of another job"
                                : "it did not answer") +
               ")";
      ::close(fd);
      return nullptr;
    }
    return kept(fd, address.rank, hello.tag, true);
  }

  // -------------------------------------------------------------------- receiving

  void accept_links(int listening) {
    while (true) {
      int fd = ::accept(listening, nullptr, nullptr);
      if (fd < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        fail(std::string("no more connections can be taken (ulimit -n?): ") + std::strerror(errno));
        std::this_thread::sleep_for(std::chrono::seconds(1));
        continue;
      }
      std::thread([this, fd] { take(fd); }).detach();
    }
  }

  void take(int fd) {
    // A stranger gets ten seconds to say the word.
    timeval limit{10, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    Hello hello{};
    char answer = 'y';
    if (!read_all(fd, &hello, sizeof hello)) {
      ::close(fd);
      return;
    }
    char expected[kTokenBytes] = {};
    std::memcpy(expected, token_.data(), std::min<size_t>(kTokenBytes, token_.size()));
    if (hello.version != kVersion) answer = 'v';
    else if (std::memcmp(hello.token, expected, kTokenBytes)) answer = 't';
    if (!write_all(fd, &answer, 1) || answer != 'y') {
      ::close(fd);
      return;
    }
    if (hello.lane == kNews) {
      std::string why(size_t(std::clamp<int64_t>(hello.to, 0, kLongestNews)), ' ');
      if (read_all(fd, why.data(), why.size())) fail(why);
      ::close(fd);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      neighbours_.insert(hello.from);
    }
    limit = {0, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    prepare(fd, 60);
    receive(*kept(fd, hello.rank, hello.tag, false), hello.from, hello.to);
  }

  void receive(links::Wire& wire, int64_t from, int64_t to) {
    std::vector<char> arrived;
    while (true) {
      Header header{};
      if (!wire.receive(&header, sizeof header)) return lost(from, to);
      if (header.magic != kMessage) {
        return fail("device " + std::to_string(to) + " got what is no message from device " +
                    std::to_string(from));
      }
      int64_t begun = now();
      PlayPtr play = found(to, {header.program, header.number, header.count});
      if (!play) return;
      auto way = std::find_if(play->in.begin(), play->in.end(),
                              [&](Direction& d) { return d.peer == from; });
      if (way == play->in.end() || header.message >= way->messages.size() ||
          header.bytes != way->messages[header.message].rows.size() * play->row_bytes) {
        return fail("rank " + std::to_string(play->rank) + " got a message from device " +
                    std::to_string(from) + " that its schedule does not have: the two run different "
                    "schedules");
      }
      Message& message = way->messages[header.message];
      arrived.resize(std::max(arrived.size(), play->row_bytes));
      for (Row& r : message.rows) {
        size_t row = size_t(r.row);
        auto may = [&] {
          return play->is_over ||
                 (play->got[row] >= r.got && play->sent[row] >= r.sent && !play->busy[row]);
        };
        bool in_place = false;
        if (!r.add) {  // straight to where it belongs, if that is free already
          std::lock_guard<std::mutex> lock(play->mutex);
          if (play->is_over) return;
          if ((in_place = may())) {
            play->busy[row] = 1;
            ++play->users;
          }
        }
        if (!wire.receive(in_place ? play->at(r.row) : arrived.data(), play->row_bytes)) {
          if (in_place) play->leave();
          return lost(from, to);
        }
        std::unique_lock<std::mutex> lock(play->mutex);
        if (!in_place) {
          play->change.wait(lock, may);
          if (play->is_over) return;
          play->busy[row] = 1;
          ++play->users;
          lock.unlock();
          if (r.add && play->has[row]) {
            play->combine(play->at(r.row), arrived.data(), play->row_bytes);
          } else {
            std::memcpy(play->at(r.row), arrived.data(), play->row_bytes);
          }
          lock.lock();
        }
        play->busy[row] = 0;
        --play->users;
        play->has[row] = 1;
        ++play->got[row];
        play->moved = Clock::now();
        play->change.notify_all();
      }
      {
        std::lock_guard<std::mutex> lock(play->mutex);
        way->arrived = header.message + 1;
      }
      record(*play, kArrives, *way, header.message, begun, begun);
      done(play);
    }
  }

  // The play that a message belongs to, once it has begun here.
  PlayPtr found(int64_t device, Tag tag) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::map<std::pair<int64_t, Tag>, PlayPtr>::iterator at;
    auto is_here = [&] {
      at = plays_.find({device, tag});
      return at != plays_.end() || !broken_.empty();
    };
    if (!is_here()) {
      awaited_.try_emplace({device, tag}, now());
      begun_.wait(lock, is_here);
    }
    return broken_.empty() ? at->second : nullptr;
  }

  // Counts the time for which messages have waited for a play to begin here. While another play was
  // under way on the device it was not late; and a program's first run compiles it.
  void is_late(const Play& play) {
    auto at = awaited_.find({play.device, play.tag});
    if (at == awaited_.end()) return;
    int64_t since = std::max(at->second, idle_since_[play.device]);
    awaited_.erase(at);
    for (auto& [key, other] : plays_) {
      if (key.first == play.device) return;
    }
    double seconds = double(play.begun - since) / 1e9;
    if (!play.tag.count || seconds <= 0) return;
    late_ = {late_[0] + seconds, std::max(late_[1], seconds), late_[2] + 1};
  }

  void record(const Play& play, What what, const Direction& way, size_t message, int64_t asked,
              int64_t begun) {
    if (!recorder.on) return;
    const Message& of = way.messages[message];
    recorder.add({what, int64_t(play.tag.program), play.tag.number, play.tag.count, play.rank,
                  way.peer_rank, play.device, way.peer, int64_t(message), of.step,
                  int64_t(of.rows.size() * play.row_bytes), asked, begun, now()});
  }

  // A link has ended: the process at its other end has, or another link of it is broken.
  void lost(int64_t from, int64_t to) {
    std::string text;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_.try_emplace({from, to}, ended_.size());
      for (auto& [key, play] : plays_) {
        if (key.first != to) continue;
        for (auto& way : play->in) {
          if (way.peer != from) continue;
          std::lock_guard<std::mutex> inner(play->mutex);
          if (!text.empty() || way.arrived >= way.messages.size()) continue;
          text = "rank " + std::to_string(play->rank) + " waits for step " +
                 std::to_string(way.messages[way.arrived].step) + " from rank " +
                 std::to_string(way.peer_rank) + " (device " + std::to_string(from) +
                 "), whose process has ended or failed";
        }
      }
    }
    if (!text.empty()) fail(text);
  }

  // -------------------------------------------------------------------- ends

  void done(const PlayPtr& play) {
    {
      std::lock_guard<std::mutex> lock(play->mutex);
      if (play->is_over || --play->left) return;
    }
    finish(*play);
    int64_t end = now();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      plays_.erase({play->device, play->tag});
      idle_since_[play->device] = end;
    }
    if (recorder.on) {
      recorder.add({kPlays, int64_t(play->tag.program), play->tag.number, play->tag.count, play->rank,
                    play->rank, play->device, play->device, 0, 0, 0, play->begun, play->begun, end});
    }
    play->ended("");
  }

 public:
  static void finish(Play& play) {
    if (play.rows == play.result) return;
    for (size_t i = 0; i < play.output.size(); ++i) {
      char* to = play.result + i * play.row_bytes;
      if (play.output[i] < 0) std::memset(to, 0, play.row_bytes);
      else std::memcpy(to, play.at(play.output[i]), play.row_bytes);
    }
  }

 private:
  bool is_broken() {
    std::lock_guard<std::mutex> lock(mutex_);
    return !broken_.empty();
  }

  // Opens an end of a link between processes that have met over a socket.
  WirePtr kept(int fd, int rank, int tag, bool is_sender) {
    WirePtr wire;
    if (rank < 0) wire = std::make_shared<SocketWire>(fd);
    else wire = links::over_mpi(fd, rank, tag, is_sender);
    std::lock_guard<std::mutex> lock(mutex_);
    if (broken_.empty()) open_.push_back(wire);
    else wire->close();
    return wire;
  }

  void fail(const std::string& why) {
    std::vector<PlayPtr> ended;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!broken_.empty()) return;
      broken_ = why;
      for (auto& [key, play] : plays_) {
        std::lock_guard<std::mutex> inner(play->mutex);
        if (!play->left) continue;  // it is ending, and well
        play->is_over = true;
        play->change.notify_all();
        ended.push_back(play);
      }
      plays_.clear();
      begun_.notify_all();
    }
    // A thread of its own: the one that found out may be in the way of what is waited for here.
    std::thread([this, why, ended] {
      tell(why);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto& wire : open_) wire->close();
      }
      for (auto& play : ended) {
        {
          std::unique_lock<std::mutex> lock(play->mutex);
          play->change.wait(lock, [&] { return !play->users; });
        }
        play->ended(why);
      }
    }).detach();
  }

  // Says to all neighbours why this process has failed, before its links end: what they see of
  // these does not say who was first.
  void tell(const std::string& why) {
    std::vector<Address> to;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (int64_t device : neighbours_) {
        if (auto at = addresses_.find(device); at != addresses_.end()) to.push_back(at->second);
      }
    }
    std::string said = why.substr(0, size_t(kLongestNews));
    for (const Address& address : to) {
      addrinfo hints{}, *found = nullptr;
      hints.ai_socktype = SOCK_STREAM;
      if (::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found)) continue;
      int fd = ::socket(found->ai_family, SOCK_STREAM, 0);
      timeval limit{1, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      if (fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
        Hello hello{kVersion, {}, 0, int64_t(said.size()), kNews};
        std::memcpy(hello.token, address.token.data(),
                    std::min<size_t>(kTokenBytes, address.token.size()));
        char answer;
        if (write_all(fd, &hello, sizeof hello) && read_all(fd, &answer, 1) &&
            write_all(fd, said.data(), said.size())) {
          // Closed when it has failed too: until then it must not see the links of this process end.
          read_all(fd, &answer, 1);
        }
      }
      if (fd >= 0) ::close(fd);
      ::freeaddrinfo(found);
    }
  }

  // Ends plays in which nothing has moved for too long, and says what they wait for.
  void watch() {
    while (true) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      std::string text;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto& [key, play] : plays_) {
          std::lock_guard<std::mutex> inner(play->mutex);
          double still = std::chrono::duration<double>(Clock::now() - play->moved).count();
          if (still < play->timeout || !text.empty()) continue;
          text = "rank " + std::to_string(play->rank) + " has waited for " +
                 std::to_string(int(play->timeout)) + " s";
          int32_t first = -1;
          for (auto& way : play->in) {
            if (way.arrived >= way.messages.size()) continue;
            int32_t step = way.messages[way.arrived].step;
            if (first >= 0 && step >= first) continue;
            first = step;
            text = "rank " + std::to_string(play->rank) + " has waited for " +
                   std::to_string(int(play->timeout)) + " s, for step " + std::to_string(step) +
                   " from rank " + std::to_string(way.peer_rank) + " (device " +
                   std::to_string(way.peer) + ")";
          }
        }
      }
      if (!text.empty()) fail(text);
    }
  }

  std::mutex mutex_;
  std::condition_variable begun_;
  int port_ = 0, rank_ = -1;
  std::string token_, broken_;
  std::map<int64_t, Address> addresses_;
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::unique_ptr<Out>> out_;
  std::map<std::tuple<int64_t, uint64_t, uint32_t>, uint32_t> counts_;
  std::map<std::pair<int64_t, Tag>, PlayPtr> plays_;
  std::map<std::pair<int64_t, Tag>, int64_t> awaited_;  // since when messages wait for a play here
  std::map<int64_t, int64_t> idle_since_;  // when the last play of a device has ended
  std::array<double, 3> late_{};
  std::vector<WirePtr> open_;
  std::set<int64_t> neighbours_;  // devices with a link to or from one here
  // Devices whose link to one here has ended, and which of them was first.
  std::map<std::pair<int64_t, int64_t>, size_t> ended_;
};

// ---------------------------------------------------------------------------- the call

struct Reader {  // of a rank's table (program.py)
  const int32_t* at;
  const int32_t* end;
  bool is_short = false;
  int32_t next() {
    if (at >= end) {
      is_short = true;
      return 0;
    }
    return *at++;
  }
  std::vector<Direction> ways(const int32_t* members, size_t ranks, ffi::Span<const int64_t> devices) {
    auto found = std::vector<Direction>(size_t(next()));
    for (auto& way : found) {
      way.peer_rank = next();
      if (size_t(way.peer_rank) < ranks && size_t(members[way.peer_rank]) < devices.size()) {
        way.peer = devices[size_t(members[way.peer_rank])];
      } else {
        is_short = true;
      }
      way.messages.resize(is_short ? 0 : size_t(next()));
      for (auto& message : way.messages) {
        message.step = next();
        message.rows.resize(is_short ? 0 : size_t(next()));
        for (auto& r : message.rows) r = {next(), next(), next(), next()};
      }
    }
    return found;
  }
};

struct Operands {
  const int32_t* table;
  size_t table_size;
  const int32_t* members;  // of the ranks of the collective, their places among the devices
  size_t ranks;
  ffi::Span<const int64_t> devices;
  const char* x;
  size_t bytes;
  char* result;
};

// Makes a play of a rank's table; what is wrong with it, or "".
std::string prepare(Play& play, const Operands& given) {
  Reader reader{given.table, given.table + given.table_size};
  play.rank = reader.next();
  size_t num_rows = size_t(reader.next()), inputs = size_t(reader.next());
  size_t outputs = size_t(reader.next());
  if (size_t(play.rank) >= given.ranks || given.devices.size() == 0 ||
      size_t(given.members[play.rank]) >= given.devices.size()) {
    return "the program does not say on which devices it runs";
  }
  play.device = given.devices[size_t(given.members[play.rank])];
  play.row_bytes = given.bytes / inputs;
  play.result = given.result;
  std::vector<int32_t> input(inputs);
  for (auto& row : input) row = reader.next();
  play.output.resize(outputs);
  bool is_result = num_rows == outputs;
  for (size_t i = 0; i < outputs; ++i) {
    play.output[i] = reader.next();
    is_result &= play.output[i] == int32_t(i);
  }
  play.out = reader.ways(given.members, given.ranks, given.devices);
  play.in = reader.ways(given.members, given.ranks, given.devices);
  if (reader.is_short) return "the program's table is cut";
  if (is_result) {
    play.rows = play.result;
  } else {
    play.own.resize(num_rows * play.row_bytes);
    play.rows = play.own.data();
  }
  play.has.assign(num_rows, 0);
  for (size_t i = 0; i < inputs; ++i) {
    if (input[i] < 0) continue;
    play.has[size_t(input[i])] = 1;
    const char* from = given.x + i * play.row_bytes;
    if (play.at(input[i]) != from) std::memcpy(play.at(input[i]), from, play.row_bytes);
  }
  play.got.assign(num_rows, 0);
  play.sent.assign(num_rows, 0);
  play.busy.assign(num_rows, 0);
  for (auto& way : play.out) play.left += way.messages.size();
  for (auto& way : play.in) {
    play.left += way.messages.size();
    for (auto& message : way.messages) {
      for (auto& r : message.rows) {
        if (r.add && !play.combine) return "numbers of this type cannot be added";
      }
    }
  }
  return "";
}

ffi::Future play_links(ffi::AnyBuffer x, ffi::AnyBuffer table, ffi::AnyBuffer members,
                       ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer> result,
                       ffi::Result<ffi::AnyBuffer> token, int64_t program, int64_t number, int64_t lane,
                       ffi::Span<const int64_t> devices, int64_t op, double timeout) {
  std::memset(token->untyped_data(), 0, token->size_bytes());
  ffi::Promise promise;
  ffi::Future future(promise);
  auto play = std::make_shared<Play>();
  play->combine = combine_of(x.element_type(), int(op));
  play->timeout = timeout;
  play->tag = {uint64_t(program), uint32_t(number), 0};
  play->lane = lane;
  play->ended = [promise](const std::string& why) mutable {
    if (why.empty()) promise.SetAvailable();
    else promise.SetError(ffi::Error(ffi::ErrorCode::kInternal, "jaxcoll links: " + why));
  };
  std::string error = prepare(
      *play, {static_cast<const int32_t*>(table.untyped_data()), table.element_count(),
              static_cast<const int32_t*>(members.untyped_data()), members.element_count(), devices,
              static_cast<const char*>(x.untyped_data()), x.size_bytes(),
              static_cast<char*>(result->untyped_data())});
  if (error.empty() && !play->left) {
    Engine::finish(*play);
    play->ended("");
    return future;
  }
  if (error.empty()) error = Engine::get().begin(play);
  if (!error.empty()) play->ended(error);
  return future;
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxcoll_play, play_links,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()  // after: the token of the call before
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("program")
                                  .Attr<int64_t>("number")
                                  .Attr<int64_t>("lane")
                                  .Attr<ffi::Span<const int64_t>>("devices")
                                  .Attr<int64_t>("op")
                                  .Attr<double>("timeout"));

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED XLA_FFI_Error* jaxcoll_links_play(XLA_FFI_CallFrame* frame) { return jaxcoll_play(frame); }

// The port of this process's engine; 0 with the reason in `error`, of 256 bytes.
EXPORTED int jaxcoll_links_listen(const char* host, const char* token, char* error) {
  std::string why;
  int port = Engine::get().listen_at(host, token, &why);
  std::strncpy(error, why.c_str(), 255);
  return port;
}

// `rank` is that of the device's process in MPI, if this carries messages to it, or -1.
EXPORTED void jaxcoll_links_know(int64_t device, const char* host, const char* port, const char* token,
                                 int rank) {
  Engine::get().know(device, {host, port, token, rank});
}

// Joins the processes that MPI has started, and says this one's rank, their number and a name of all
// together; 0 with the reason in `error`, of 256 bytes.
EXPORTED int jaxcoll_links_join(const char* library, double timeout, int64_t* into, char* error) {
  links::World joined;
  std::string why = Engine::get().join(library, timeout, &joined);
  std::strncpy(error, why.c_str(), 255);
  into[0] = joined.rank;
  into[1] = joined.size;
  into[2] = joined.name;
  return why.empty();
}

EXPORTED void jaxcoll_links_leave() { Engine::get().leave(); }

// Begins a record of what the links carry, or ends it.
EXPORTED void jaxcoll_links_record(int on) {
  Recorder& recorder = Engine::get().recorder;
  std::lock_guard<std::mutex> lock(recorder.mutex);
  if (on) recorder.events.clear();
  recorder.on = on;
}

// Copies up to `most` recorded events, and says how many there are.
EXPORTED int64_t jaxcoll_links_recorded(int64_t* into, int64_t most) {
  Recorder& recorder = Engine::get().recorder;
  std::lock_guard<std::mutex> lock(recorder.mutex);
  auto& events = recorder.events;
  for (size_t i = 0; i < events.size() && int64_t(i) < most; ++i) {
    std::copy(events[i].begin(), events[i].end(), into + i * events[i].size());
  }
  return int64_t(events.size());
}

EXPORTED void jaxcoll_links_late(double* into) { Engine::get().lateness(into); }

EXPORTED int jaxcoll_links_version() { return int(kVersion); }
}
