// Power loss at any moment. The real job store and the real checkpoint writers run under a recorder
// of everything they do to a folder. Then, for the moments before each sync, the test creates the
// states in which the disk may be left (tests/testing/power_loss/power_loss.h). In each state the
// real readers must find what had been acknowledged by then. Not built for the sanitizers, whose
// libraries must be preloaded first.
#include "tests/testing/power_loss/power_loss.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/run/atomic_file.h"
#include "common/run/journal.h"
#include "common/run/process.h"
#include "gmock/gmock.h"
#include "server/store/job_store.h"
#include "server/store/state_lock.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/paths.h"
#include "tests/testing/small_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/model/parameters.h"

// The readers' own syncs do nothing: in thousands of short-lived folders they would only take time.
extern "C" {
int fsync(int) { return 0; }
int fdatasync(int) { return 0; }
}

namespace nsa {
namespace {

namespace fs = std::filesystem;

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Returns what is wrong with a folder after a power loss; empty when all promises hold. `said` is
// what the programs had printed until then.
using Check = std::function<std::string(const fs::path& folder, const std::string& said)>;

// Runs `check` only where something had been acknowledged.
Check OnceSaid(const std::string& word, const Check& check) {
  return [word, check](const fs::path& folder, const std::string& said) {
    return said.find(word) == std::string::npos ? "" : check(folder, said);
  };
}

// A folder in memory if possible, because thousands of folders are created and removed in it.
fs::path InMemory() {
  constexpr uintmax_t kEnough = 32 << 20;
  std::error_code error;
  const fs::space_info space = fs::space("/dev/shm", error);
  const bool usable = !error && space.available > kEnough && access("/dev/shm", W_OK) == 0;
  return usable ? "/dev/shm" : fs::temp_directory_path();
}

class PowerLoss : public ::testing::Test {
 protected:
  PowerLoss() : folder_(fs::canonical(dir_.path()) / "disk") { fs::create_directory(folder_); }

  // Runs one of our programs, by its name, to its end.
  void Run(std::vector<std::string> argv) {
    argv[0] = Program(argv[0]);
    const auto child = Spawn({.argv = argv,
                              .environment = {{"LD_PRELOAD", TestFile("disk_recorder.so")},
                                              {"NSA_DISK_FOLDER", folder_.string()},
                                              {"NSA_DISK_LOG", (dir_ / "log").string()}},
                              .working_dir = {},
                              .output = dir_ / "output"});
    ASSERT_OK(child);
    int status = -1;
    ASSERT_EQ(waitpid(child->pid, &status, 0), child->pid);
    ASSERT_EQ(status, 0);
  }

  // Reads the recording, and checks that it is complete.
  void ReadRecording() {
    struct stat info {};
    ASSERT_EQ(stat(folder_.c_str(), &info), 0);
    inode_ = info.st_ino;
    events_ = ReadDiskLog(dir_ / "log", folder_);
    Disk disk(inode_);
    for (const DiskEvent& event : events_) disk.Apply(event);
    const DiskTree told = disk.After({Loss::kNamesThere, Loss::kThere}, &random_);
    const DiskTree there = ReadTree(folder_);
    for (const auto& [path, entry] : there) {
      ASSERT_TRUE(told.count(path)) << path << ": was not recorded";
      ASSERT_TRUE(told.at(path) == entry) << path << ": was recorded otherwise";
    }
    for (const auto& [path, entry] : told) {
      ASSERT_TRUE(there.count(path)) << path << ": its removal was not recorded";
    }
  }

  // Simulates a power loss before syncs and at the end; at other moments less can be lost. Returns
  // the first broken promise.
  std::string CutPower(const Check& check, Honoured honoured = Honoured::kAll) {
    Disk disk(inode_, honoured);
    std::string said;
    for (size_t i = 0; i < events_.size(); ++i) {
      if (IsMoment(i)) {
        const std::string broken = CutPowerNow(disk, said, check);
        if (!broken.empty()) return absl::StrCat("before event ", i, ", ", broken);
      }
      disk.Apply(events_[i]);
      if (events_[i].op == DiskOp::kSaid) said += events_[i].data;
    }
    return CutPowerNow(disk, said, check);
  }

  // How often a file was synced between the first acknowledgement and the last one.
  int SyncsWhileSpeaking(const std::string& path) const {
    const auto is_said = [](const DiskEvent& event) { return event.op == DiskOp::kSaid; };
    const auto first = std::find_if(events_.begin(), events_.end(), is_said);
    const auto last = std::find_if(events_.rbegin(), events_.rend(), is_said).base();
    struct stat info {};
    EXPECT_EQ(stat((folder_ / path).c_str(), &info), 0) << path;
    int syncs = 0;
    for (auto event = first; event < last; ++event) {
      if (event->op == DiskOp::kSync && event->inode == info.st_ino) ++syncs;
    }
    return syncs;
  }

  const fs::path& folder() const { return folder_; }

 private:
  // Every sync is a moment to test. Of many syncs of one file in a row: the first two, and one in
  // eight of the others.
  bool IsMoment(size_t event) {
    if (events_[event].op != DiskOp::kSync) return false;
    in_a_row_ = events_[event].inode == last_synced_ ? in_a_row_ + 1 : 0;
    last_synced_ = events_[event].inode;
    return in_a_row_ < 2 || random_() % 8 == 0;
  }

  std::string CutPowerNow(const Disk& disk, const std::string& said, const Check& check) {
    std::vector<Loss> losses;
    for (const auto names : {Loss::kNamesLost, Loss::kNamesThere}) {
      for (const auto data :
           {Loss::kLost, Loss::kThere, Loss::kZeros, Loss::kTorn, Loss::kLastOnly}) {
        losses.push_back({names, data});
      }
    }
    losses.insert(losses.end(), 4, {Loss::kNamesRandom, Loss::kRandom});
    std::vector<DiskTree> seen;
    for (const Loss& loss : losses) {
      DiskTree tree = disk.After(loss, &random_);
      if (std::find(seen.begin(), seen.end(), tree) != seen.end()) continue;
      const TempDir left(InMemory());
      WriteTree(tree, left.path());
      std::string broken = check(left.path(), said);
      if (!broken.empty()) {
        return absl::StrCat(ToString(loss), ": ", broken);
      }
      seen.push_back(std::move(tree));
    }
    return "";
  }

  const TempDir dir_;
  const fs::path folder_;
  uint64_t inode_ = 0;
  std::vector<DiskEvent> events_;
  std::mt19937 random_{20261121};
  uint64_t last_synced_ = 0;
  int in_a_row_ = 0;
};

// The coordinator's state folder, which the coordinator creates.
constexpr char kState[] = "var/nsa/state";

// store_writer prints `job ID REQUEST` and `record ID STEP`.
std::string CheckStore(const fs::path& folder, const std::string& said) {
  const FakeClock clock;
  const auto lock = server::LockStateDir(folder / kState);
  if (!lock.ok()) return lock.status().ToString();
  const auto store = server::JobStore::Open(folder / kState, clock, {});
  if (!store.ok()) return store.status().ToString();
  std::map<std::string, size_t> records;
  std::istringstream lines(said);
  std::string kind, id, detail;
  while (lines >> kind >> id >> detail) {
    if (kind == "record") {
      ++records[id];
      continue;
    }
    records[id] = 0;
    const auto job = (*store)->FindRequest(detail, "fingerprint");
    if (!job.ok() || *job == nullptr) return absl::StrCat(detail, ": acknowledged and gone");
    if ((*job)->job().id() != id) return absl::StrCat(detail, ": another job");
  }
  const auto page = (*store)->List(1'000, "", {});
  if (!page.ok()) return page.status().ToString();
  if (page->jobs.size() < records.size()) return "a job is not listed";
  if (page->jobs.size() > records.size() + 1) return "jobs that nobody submitted";
  std::set<std::string> ids;
  for (const server::JobPtr& stored : page->jobs) {
    const v1::Job& job = stored->job();
    if (!ids.insert(job.id()).second) return absl::StrCat(job.id(), ": twice");
    const auto events = (*store)->Events(job.id(), 0, 10);
    if (!events.ok()) return events.status().ToString();
    if (events->size() != 1) return absl::StrCat(job.id(), ": ", events->size(), " events");
    const auto rows = (*store)->Records(job.id(), -1, 0, 1'000);
    if (!rows.ok()) return rows.status().ToString();
    if (rows->size() < records[job.id()]) return absl::StrCat(job.id(), ": a record is gone");
    if (rows->size() > records[job.id()] + 1) return absl::StrCat(job.id(), ": too many records");
    for (size_t i = 0; i < rows->size(); ++i) {
      const int64_t step = (*rows)[i].record().step().step();
      if (step != static_cast<int64_t>(i) + 1) return absl::StrCat(job.id(), ": a record is wrong");
    }
    if (job.progress().step() != static_cast<int64_t>(rows->size())) {
      return absl::StrCat(job.id(), ": half a transaction");
    }
  }
  return "";
}

// checkpoint_writer prints `published STEP`.
constexpr char kOutDir[] = "var/out/job";

std::string CheckCheckpoints(const fs::path& folder, const std::string& said) {
  int64_t published = 0, latest = 0;  // by any run; by the current run
  std::istringstream words(said);
  for (std::string word; words >> word;) {
    if (word == "ready") latest = 0;
    if (word == "published" && words >> latest) published = std::max(published, latest);
  }
  const auto newest = FindNewestGood(folder / kOutDir);
  if (!newest.ok()) return newest.status().ToString();
  if (newest->entry.step < published) return absl::StrCat(published, ": published and gone");
  const auto entries = ListCheckpoints(folder / kOutDir);
  if (!entries.ok()) return entries.status().ToString();
  for (const CheckpointEntry& entry : *entries) {
    const std::vector<std::string> problems = VerifyCheckpoint(entry.path);
    if (!problems.empty()) return absl::StrCat(entry.step, " has a final name: ", problems[0]);
  }
  const fs::path link = CheckpointsDir(folder / kOutDir) / "latest.ckpt";
  std::error_code absent;
  const fs::path target = fs::read_symlink(link, absent);
  if (!absent && !VerifyCheckpoint(link).empty())
    return "latest.ckpt: leads to no whole checkpoint";
  if (latest > 0 && target < CheckpointName(latest)) return "latest.ckpt: behind";
  if (!newest->found) return "";
  static const train::ParameterLayout layout(SmallModel());
  std::vector<float> parameters(layout.size()), m(parameters), v(parameters);
  const auto state = train::LoadCheckpoint(newest->entry.path, "", {&layout, parameters, m, v});
  if (!state.ok()) return state.status().ToString();
  if (m != std::vector<float>(m.size(), static_cast<float>(newest->entry.step)) || v != m) {
    return "not what was saved";
  }
  // The next worker repairs the link.
  train::CheckpointWriterOptions options;
  options.out_dir = *train::Folder::Make(folder / kOutDir);
  const auto next = train::CheckpointWriter::Open(options);
  if (!next.ok()) return next.status().ToString();
  return fs::read_symlink(link) == newest->entry.path.filename() ? "" : "latest.ckpt: not repaired";
}

// notes_writer prints `note N`.
std::string CheckNotes(const fs::path& folder, const std::string& said) {
  const auto acknowledged = static_cast<size_t>(std::count(said.begin(), said.end(), '\n'));
  const auto note = ReadWholeFile(folder / "note");
  if (!note.ok() && acknowledged > 0) return note.status().ToString();
  const size_t number = note.ok() ? note->size() : 0;
  if (number < acknowledged || number > acknowledged + 1) return absl::StrCat("note ", number);
  if (note.ok() && *note != std::string(number, static_cast<char>('0' + number % 10))) {
    return "note: not what was written";
  }
  // No record is guaranteed to be there, but those that are read must be the first ones.
  JournalReader reader(folder / "journal");
  for (int64_t step = 1;; ++step) {
    const auto record = reader.Next();
    if (absl::IsDataLoss(record.status())) return "";
    if (!record.ok()) return record.status().ToString();
    if (!record->has_value()) return "";
    if ((*record)->step().step() != step) return "journal: a record is missing";
  }
}

class PowerLossOfTheStore : public PowerLoss {
 protected:
  // Two runs of a coordinator. The first is so long that SQLite checkpoints its write-ahead log
  // into the database file.
  PowerLossOfTheStore() {
    Run({"store_writer", (folder() / kState).string(), "a", "16"});
    Run({"store_writer", (folder() / kState).string(), "b", "2"});
    ReadRecording();
  }
};

TEST_F(PowerLossOfTheStore, WhatWasAcknowledgedIsThereOnceAndWhole) {
  const std::string file = absl::StrCat(kState, "/jobs.sqlite");
  EXPECT_GE(SyncsWhileSpeaking(file), 2) << "in the middle, and when the first life ended";
  EXPECT_EQ(CutPower(CheckStore), "");
}

TEST_F(PowerLossOfTheStore, AWriterThatDoesNotSyncLosesWhatItAcknowledged) {
  const auto gone = AnyOf(HasSubstr("acknowledged and gone"), HasSubstr("is damaged"));
  for (const auto honoured : {Honoured::kNone, Honoured::kOfFiles, Honoured::kOfFolders}) {
    EXPECT_THAT(CutPower(OnceSaid("job", CheckStore), honoured), gone);
  }
}

class PowerLossOfCheckpoints : public PowerLoss {
 protected:
  // The second run begins at a step before the end of the first, as after a rollback, and has two
  // ranks.
  PowerLossOfCheckpoints() {
    Run({"checkpoint_writer", (folder() / kOutDir).string(), "1", "5"});
    Run({"checkpoint_writer", (folder() / kOutDir).string(), "4", "6", "2"});
    ReadRecording();
  }
};

TEST_F(PowerLossOfCheckpoints, WhatWasPublishedIsFoundAndNothingElseHasAFinalName) {
  EXPECT_EQ(CutPower(CheckCheckpoints), "");
}

TEST_F(PowerLossOfCheckpoints, AWriterThatDoesNotSyncLosesWhatItPublished) {
  const auto gone = AnyOf(HasSubstr("published and gone"), HasSubstr("NO_VALID_CHECKPOINT"));
  for (const auto honoured : {Honoured::kNone, Honoured::kOfFiles, Honoured::kOfFolders}) {
    EXPECT_THAT(CutPower(OnceSaid("published", CheckCheckpoints), honoured), gone);
  }
}

class PowerLossOfNotes : public PowerLoss {
 protected:
  PowerLossOfNotes() {
    Run({"notes_writer", folder().string(), "20"});
    ReadRecording();
  }
};

TEST_F(PowerLossOfNotes, ANoteIsTheOldOrTheNewAndAJournalEndsWhereItIsDamaged) {
  EXPECT_EQ(CutPower(CheckNotes), "");
}

TEST_F(PowerLossOfNotes, AWriterThatDoesNotSyncLosesItsNotes) {
  for (const auto honoured : {Honoured::kNone, Honoured::kOfFiles, Honoured::kOfFolders}) {
    EXPECT_THAT(CutPower(OnceSaid("note", CheckNotes), honoured), HasSubstr("note"));
  }
}

}  // namespace
}  // namespace nsa
