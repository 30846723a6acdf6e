// Several ranks of a machine that need the same tokens at the same time.
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <thread>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "gmock/gmock.h"
#include "tests/worker/train/data/prepared/token_cache_jobs.h"
#include "worker/train/data/cache/beat.h"
#include "worker/train/data/cache/entry_lock.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

using testing::IsEmpty;
using testing::SizeIs;

class TokenCacheRanksTest : public testing::Test {
 protected:
  void SetUp() override {
    Write(dir_ / "train.jsonl", Lines(3000));
    spec_ = JobOnLines(dir_ / "train.jsonl");
    wanted_ = CorpusOfFiles(spec_);
  }

  // The entry that the job will have, which is not there.
  TokenEntry EmptyEntry() {
    CorpusWith(spec_, CacheIn(cache_));
    const TokenEntry entry = EntriesIn(cache_).at(0);
    fs::remove_all(cache_);
    fs::create_directories(cache_ / "tokens");
    return entry;
  }

  const TempDir dir_;
  const TempDir cache_dir_;
  const fs::path cache_ = cache_dir_ / "cache";
  v1::JobSpec spec_;
  std::string wanted_;
};

TEST_F(TokenCacheRanksTest, OneMakesTheTokensAndAllMapThem) {
  fs::create_directories(cache_ / "tokens");
  const Fd events(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  ASSERT_GE(inotify_add_watch(events.get(), (cache_ / "tokens").c_str(), IN_MOVED_TO), 0);
  std::vector<std::string> corpora(6);
  std::vector<std::thread> ranks;
  for (std::string& corpus : corpora) {
    ranks.emplace_back([&] { corpus = CorpusWith(spec_, CacheIn(cache_)); });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(corpora, testing::Each(wanted_));
  EXPECT_THAT(EntriesIn(cache_), SizeIs(1));
  EXPECT_THAT(EntriesIn(cache_, ".partial"), IsEmpty());
  alignas(inotify_event) char moved[4096];
  const ssize_t length = read(events.get(), moved, sizeof(moved));
  ASSERT_GT(length, 0);
  const auto* const first = reinterpret_cast<const inotify_event*>(moved);
  EXPECT_EQ(length, static_cast<ssize_t>(sizeof(inotify_event) + first->len)) << "made once";
}

// A process that holds the lock of an entry until it is killed.
class Writer {
 public:
  explicit Writer(const TokenEntry& entry) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    child_ = fork();
    if (child_ == 0) {
      const auto lock = EntryLock::Take(entry.lock());
      fs::create_directory(entry.partial());
      Write(entry.partial() / "tokens-00000.bin", "half");
      const bool told = lock.ok() && write(ready[1], "x", 1) == 1;
      while (told) pause();
      _exit(1);
    }
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~Writer() { Kill(); }

  void Kill() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  pid_t child_ = 0;
};

TEST_F(TokenCacheRanksTest, AnotherRankTakesOverFromAWriterThatIsKilled) {
  const TokenEntry entry = EmptyEntry();
  Writer writer(entry);
  int looks = 0;
  const auto corpus = LoadWith(spec_, CacheIn(cache_), [&] {
    if (++looks == 5) {
      EXPECT_FALSE(fs::exists(entry.tokens())) << "it waits while the writer lives";
      writer.Kill();
    }
    return false;
  });
  ASSERT_OK(corpus);
  EXPECT_GE(looks, 5);
  EXPECT_EQ(Described(*corpus), wanted_);
  EXPECT_TRUE(fs::exists(entry.tokens()));
  EXPECT_FALSE(fs::exists(entry.partial()));
}

TEST_F(TokenCacheRanksTest, AStopEndsTheWait) {
  const TokenEntry entry = EmptyEntry();
  const auto lock = EntryLock::Take(entry.lock());
  ASSERT_OK(lock);
  int looks = 0;
  std::optional<absl::Duration> asked;
  const RealClock clock;
  const auto corpus = LoadWith(spec_, CacheIn(cache_), [&] {
    if (++looks < 3) return false;
    if (!asked) asked = clock.Monotonic();
    return true;
  });
  EXPECT_EQ(ReasonOf(corpus.status()), Reason::kStopped);
  ASSERT_TRUE(asked);
  EXPECT_LT(clock.Monotonic() - *asked, absl::Seconds(1));
}

// The thread that waits ends too, so that it does not take the lock when nobody needs the tokens.
TEST_F(TokenCacheRanksTest, AThreadThatWaitsEndsWhenItIsCancelled) {
  const TokenEntry entry = EmptyEntry();
  const auto lock = EntryLock::Take(entry.lock());
  ASSERT_OK(lock);
  ReadProgress progress;
  progress.cancelled = true;
  EXPECT_THAT(OpenWith(
                  CacheIn(cache_), dir_ / "train.jsonl", [] {}, &progress),
              StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(TokenCacheRanksTest, AWriterThatHangsIsNoticed) {
  const TokenEntry entry = EmptyEntry();
  const auto lock = EntryLock::Take(entry.lock());
  ASSERT_OK(lock);
  const auto corpus = LoadWith(spec_, CacheIn(cache_), {}, absl::Milliseconds(700));
  EXPECT_EQ(ReasonOf(corpus.status()), Reason::kDataStalled);
}

TEST_F(TokenCacheRanksTest, AWriterThatGoesOnIsWaitedFor) {
  const TokenEntry entry = EmptyEntry();
  constexpr absl::Duration kStall = absl::Seconds(3);
  const RealClock clock;
  const absl::Duration started = clock.Monotonic();
  std::atomic<int64_t> work = 0;
  auto lock = EntryLock::Take(entry.lock());
  ASSERT_OK(lock);
  std::optional<Beat> beat;
  beat.emplace(entry.lock(), work);
  const auto corpus = LoadWith(
      spec_, CacheIn(cache_),
      [&] {
        ++work;
        if (clock.Monotonic() - started < 2 * kStall || !beat) return false;
        beat.reset();
        { const auto released = std::move(lock); }
        return false;
      },
      kStall);
  ASSERT_OK(corpus);
  EXPECT_EQ(Described(*corpus), wanted_);
  EXPECT_GE(clock.Monotonic() - started, 2 * kStall);
}

}  // namespace
}  // namespace nsa::train
