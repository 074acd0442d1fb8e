// Plays programs without XLA, for sanitizers: ranks are threads of one process, links its loopback.
//
// Reads a file of int32: the number of programs; of each its number of ranks and of bytes in a row;
// and of each rank a table, an operand and the result that is expected, each after its length.
// A second argument names a library of MPI of one process, which then carries the messages.
// Between plays a rank waits for some time by chance, so that ranks are now early and now late.

#include "player.cc"

#include <cstdio>
#include <cstdlib>
#include <future>
#include <random>

using Numbers = std::vector<int32_t>;

struct Part {
  Numbers table, x, expected;
};

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  std::FILE* file = std::fopen(argv[1], "rb");
  if (!file) return 2;
  auto next = [&] {
    int32_t number = 0;
    if (std::fread(&number, 4, 1, file) != 1) std::exit(2);
    return number;
  };
  auto numbers = [&] {
    Numbers found(static_cast<size_t>(next()));
    for (auto& number : found) number = next();
    return found;
  };
  std::vector<std::vector<Part>> programs(static_cast<size_t>(next()));
  size_t most = 0;
  for (auto& parts : programs) {
    parts.resize(size_t(next()));
    most = std::max(most, parts.size());
    for (auto& part : parts) part = {numbers(), numbers(), numbers()};
  }
  std::fclose(file);

  std::string error;
  const std::string word(kTokenBytes, 'w');
  int port = Engine::get().listen_at("127.0.0.1", word.c_str(), &error);
  if (!port) return std::fprintf(stderr, "%s\n", error.c_str()), 1;
  links::World world;
  if (argc == 3) error = Engine::get().join(argv[2], 60, &world);
  if (!error.empty()) return std::fprintf(stderr, "%s\n", error.c_str()), 1;
  std::vector<int64_t> devices(most);
  Numbers members(most);
  for (size_t rank = 0; rank < most; ++rank) {
    devices[rank] = int64_t(100 + rank);
    members[rank] = int32_t(rank);
    Engine::get().know(devices[rank], {"127.0.0.1", std::to_string(port), word, int(world.rank)});
  }

  std::atomic<int> wrong{0};
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < most; ++rank) {
    ranks.emplace_back([&, rank] {
      std::mt19937 chance{unsigned(rank)};
      for (size_t k = 0; k < programs.size() && !wrong; ++k) {
        auto& parts = programs[k];
        if (rank >= parts.size()) continue;
        if (chance() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(chance() % 500));
        Part& part = parts[rank];
        Numbers result(part.expected.size());
        std::promise<std::string> ended;
        auto play = std::make_shared<Play>();
        play->combine = combine_of(ffi::DataType::S32, 0);
        play->tag = {k, 0, 0};
        play->lane = 0;
        play->ended = [&](const std::string& why) { ended.set_value(why); };
        std::string why = prepare(*play, {part.table.data(), part.table.size(), members.data(),
                                          parts.size(), {devices.data(), devices.size()},
                                          reinterpret_cast<const char*>(part.x.data()),
                                          part.x.size() * 4, reinterpret_cast<char*>(result.data())});
        if (why.empty() && !play->left) {
          Engine::finish(*play);
        } else if (why.empty()) {
          why = Engine::get().begin(play);
          if (why.empty()) why = ended.get_future().get();
        }
        if (!why.empty() || result != part.expected) {
          std::fprintf(stderr, "program %zu, rank %zu: %s\n", k, rank,
                       why.empty() ? "another result" : why.c_str());
          ++wrong;
        }
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  Engine::get().leave();
  std::fflush(nullptr);
  // The engine's threads have no end.
  std::_Exit(wrong ? 1 : 0);
}
