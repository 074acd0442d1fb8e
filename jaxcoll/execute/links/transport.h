// What carries the messages of a link: a socket (player.cc) or MPI (mpi.cc).

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace links {

// One way of a link, at one of its ends. What one end sends the other receives, in the same order
// and cut in the same way; one thread at a time sends or receives.
class Wire {
 public:
  virtual ~Wire() = default;

  // Returns when the memory may change, which can be long before the bytes arrive. What is not the
  // last part of a message may be held back until that part is sent. False if the link has ended.
  virtual bool send(const void* data, size_t bytes, bool is_last) = 0;
  virtual bool receive(void* data, size_t bytes) = 0;

  // Ends the link, from any thread; what is under way returns false.
  virtual void close() = 0;

  // Why the link has ended.
  virtual std::string why() = 0;
};

// The processes that MPI has started together, and this one among them.
struct World {
  int64_t rank = -1, size = 0;
  int64_t name = 0;  // the same in all of its processes
};

// Loads a library of MPI and joins its other processes; what is wrong, or "". All processes of the
// job have to call this.
std::string join_world(const char* library, double timeout, World* joined);

// Leaves MPI in peace, with all other processes: without it, its launcher takes the end of this
// process for a failure.
void leave_world();

// A number for a link from this process, which no other link from here has; -1 if there are no more.
int new_tag();

// Opens one end of a link to or from a process by its rank in MPI. The socket connects the two
// processes: when it ends, the link has.
std::shared_ptr<Wire> over_mpi(int socket, int rank, int tag, bool is_sender);

}  // namespace links
