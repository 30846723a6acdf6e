#include "common/checkpoint/checkpoint_dir.h"

#include <cctype>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_info.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

void Write(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::filesystem::path MakeCheckpoint(const std::filesystem::path& out_dir, int64_t step) {
  const std::filesystem::path path = CheckpointsDir(out_dir) / CheckpointName(step);
  std::filesystem::create_directories(path);
  v1::CheckpointState state;
  state.set_step(step);
  state.set_total_tokens(step * 100);
  state.mutable_spec()->set_name("a-job");
  state.set_best_val_loss(2.25);
  for (const std::string name : {"model.safetensors", "optimizer-00000-of-00002.safetensors",
                                 "optimizer-00001-of-00002.safetensors"}) {
    Write(path / name, name + std::string(100, static_cast<char>('a' + step % 26)));
    v1::CheckpointFile* file = state.add_files();
    file->set_name(name);
    file->set_bytes(static_cast<int64_t>(std::filesystem::file_size(path / name)));
    file->set_xxh3_128(*HashFile(path / name));
  }
  const auto text = SerializeCheckpointState(state);
  EXPECT_OK(text);
  Write(path / "state.json", *text);
  return path;
}

// The text of a state.json with its own hash, which is that of the text with zeros in its place.
std::string WithItsHash(std::string text) {
  const TempDir dir;
  const size_t digits = text.find("\"state_xxh3_128\": \"") + 19;
  Write(dir / "zeros", text.replace(digits, 32, 32, '0'));
  return text.replace(digits, 32, *HashFile(dir / "zeros"));
}

std::vector<int64_t> Steps(const std::vector<CheckpointEntry>& entries) {
  std::vector<int64_t> steps;
  for (const auto& entry : entries) steps.push_back(entry.step);
  return steps;
}

TEST(CheckpointDir, AValidationLossIsThatOfTheCheckpointsOwnStep) {
  v1::CheckpointState state;
  v1::TrainSpec& train = *state.mutable_spec()->mutable_train();
  train.set_steps(3650);
  train.set_eval_every(500);
  state.set_val_loss(2.5);
  const auto at = [&](int64_t step) {
    state.set_step(step);
    return ValLossAt(state);
  };
  EXPECT_EQ(at(3500), 2.5);
  EXPECT_EQ(at(3640), std::nullopt) << "the loss is that of step 3500";
  EXPECT_EQ(at(3650), 2.5) << "the last step is validated too";
  train.set_eval_every(0);
  EXPECT_EQ(at(3500), std::nullopt);
  train.set_eval_every(500);
  for (const double none : {0.0, std::nan("")}) {
    state.set_val_loss(none);
    EXPECT_EQ(at(3500), std::nullopt);
  }
  state.set_val_loss(2.5);
  state.set_val_step(3640);
  EXPECT_EQ(at(3640), 2.5) << "the run was stopped there";
  EXPECT_EQ(at(3500), std::nullopt);
}

TEST(CheckpointDir, HashesAreXxh3Of128Bits) {
  const TempDir dir;
  Write(dir / "empty", "");
  // The value is from the XXH3 specification.
  EXPECT_EQ(*HashFile(dir / "empty"), "99aa06d3014798d86001c324468d497f");
}

TEST(CheckpointDir, ListsExactNamesOnlyOldestFirst) {
  const TempDir dir;
  for (const int64_t step : {200, 100, 123456789}) MakeCheckpoint(dir.path(), step);
  const std::filesystem::path checkpoints = CheckpointsDir(dir.path());
  for (const char* name :
       {"step-00000100.backup", "step-00000300.tmp-3", "step-300", "step-0000030x", "step-+0000300",
        "step-", "xstep-00000300", "step-000000300"}) {
    std::filesystem::create_directory(checkpoints / name);
  }
  std::filesystem::create_directory_symlink("step-00000200", checkpoints / "step-00000400");
  std::filesystem::create_directory_symlink("step-00000200", checkpoints / "latest.ckpt");
  Write(checkpoints / "step-00000500", "a file");
  const auto entries = ListCheckpoints(dir.path());
  ASSERT_OK(entries);
  EXPECT_THAT(Steps(*entries), ElementsAre(100, 200, 123456789));
}

TEST(CheckpointDir, AnOutDirWithoutCheckpointsIsAnEmptyList) {
  const TempDir dir;
  EXPECT_THAT(ListCheckpoints(dir.path())->size(), 0u);
  EXPECT_THAT(ListCheckpoints(dir / "absent")->size(), 0u);
  EXPECT_FALSE(FindNewestGood(dir.path())->found);
}

TEST(CheckpointDir, StateIsReadBackAsItWasWritten) {
  const TempDir dir;
  const auto state = ReadCheckpointState(MakeCheckpoint(dir.path(), 5000));
  ASSERT_OK(state);
  EXPECT_EQ(state->step(), 5000);
  EXPECT_EQ(state->total_tokens(), 500000);
  EXPECT_EQ(state->spec().name(), "a-job");
  EXPECT_EQ(state->best_val_loss(), 2.25);
  EXPECT_EQ(state->files_size(), 3);
}

TEST(CheckpointDir, StateSpellsItsKeysAsTheJobFileDoes) {
  const TempDir dir;
  const std::string text = Read(MakeCheckpoint(dir.path(), 7) / "state.json");
  for (const char* key : {"format_version", "total_tokens", "best_val_loss", "xxh3_128"}) {
    EXPECT_THAT(text, HasSubstr(std::string("\"") + key + "\":"));
  }
  EXPECT_THAT(text, testing::Not(testing::ContainsRegex("\"[a-z0-9_]*[A-Z][A-Za-z0-9]*\":")));
}

// Earlier versions had these keys of the job; without them the model would be another one.
TEST(CheckpointDir, AKeyThatIsGoneIsRefusedByNameUnlessItIsOff) {
  v1::CheckpointState state;
  state.mutable_spec()->mutable_model()->set_dim(64);
  state.mutable_spec()->mutable_train()->set_seq_len(32);
  const auto read_with = [&](const std::string& before, const std::string& key) {
    std::string text = *SerializeCheckpointState(state);
    text.insert(text.find(before), key + ", ");
    return ParseCheckpointState(WithItsHash(text), "state.json").status();
  };
  EXPECT_THAT(read_with("\"dim\"", "\"logit_softcap\": 30"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("state.json: model.logit_softcap: 30 (this version no longer has "
                                 "this key); use the version that wrote the checkpoint")));
  EXPECT_THAT(read_with("\"seq_len\"", "\"z_loss\": 0.0001"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("train.z_loss: 0.0001")));
  EXPECT_THAT(read_with("\"dim\"", "\"zero_init_outputs\": true"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("model.zero_init_outputs: true (this version no longer has")));
  EXPECT_OK(read_with("\"dim\"", "\"zero_init_outputs\": false"));
  for (const char* off : {"0", "0.0", "null"}) {
    EXPECT_OK(read_with("\"dim\"", std::string("\"logit_softcap\": ") + off)) << off;
    EXPECT_OK(read_with("\"seq_len\"", std::string("\"z_loss\": ") + off)) << off;
  }
  EXPECT_OK(read_with("\"seq_len\"", "\"of_a_newer_version\": 1"));
}

TEST(CheckpointDir, StateWithTheKeysOfOlderVersionsIsRead) {
  const TempDir dir;
  const auto path = MakeCheckpoint(dir.path(), 7);
  const std::string text = Read(path / "state.json");
  std::string old;  // total_tokens -> totalTokens, state_xxh3_128 -> stateXxh3128
  for (size_t i = 0; i < text.size(); ++i) {
    const bool in_key = text[i] == '_';
    old +=
        in_key ? static_cast<char>(std::toupper(static_cast<unsigned char>(text[++i]))) : text[i];
  }
  const size_t digits = old.find("\"stateXxh3128\": \"") + 17;
  ASSERT_GT(digits, size_t{17});
  Write(dir / "zeros", old.replace(digits, 32, 32, '0'));
  Write(path / "state.json", old.replace(digits, 32, *HashFile(dir / "zeros")));
  EXPECT_THAT(VerifyCheckpoint(path), IsEmpty());
  const auto state = ReadCheckpointState(path);
  ASSERT_OK(state);
  EXPECT_EQ(state->total_tokens(), 700);
  EXPECT_EQ(state->best_val_loss(), 2.25);
  EXPECT_EQ(state->files(2).name(), "optimizer-00001-of-00002.safetensors");
  old[digits] = old[digits] == '0' ? '1' : '0';
  Write(path / "state.json", old);
  EXPECT_THAT(ReadCheckpointState(path), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(CheckpointDir, AWholeCheckpointHasNoProblems) {
  const TempDir dir;
  EXPECT_THAT(VerifyCheckpoint(MakeCheckpoint(dir.path(), 7)), IsEmpty());
}

TEST(CheckpointDir, VerifyingEndsWhenNobodyWaitsAnyMore) {
  const TempDir dir;
  const auto path = MakeCheckpoint(dir.path(), 7);
  int asked = 0;
  const auto third = [&] { return ++asked >= 3; };
  EXPECT_THAT(VerifyCheckpoint(path, third), ElementsAre(HasSubstr("no longer waits")));
  EXPECT_EQ(asked, 3);
  EXPECT_THAT(HashFile(path / "model.safetensors", [] { return true; }),
              StatusIs(absl::StatusCode::kCancelled));
}

TEST(CheckpointDir, EveryFlippedBitInEveryFileIsNamed) {
  const TempDir dir;
  const auto path = MakeCheckpoint(dir.path(), 7);
  for (const std::string name :
       {"model.safetensors", "optimizer-00001-of-00002.safetensors", "state.json"}) {
    const std::string good = Read(path / name);
    for (size_t bit = 0; bit < good.size() * 8; bit += 17) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
      Write(path / name, bad);
      const auto problems = VerifyCheckpoint(path);
      ASSERT_FALSE(problems.empty()) << name << " bit " << bit;
      ASSERT_THAT(problems[0], StartsWith(name + ":")) << " bit " << bit;
    }
    Write(path / name, good);
  }
  EXPECT_THAT(VerifyCheckpoint(path), IsEmpty());
}

TEST(CheckpointDir, TruncationAbsenceAndSwappedShardsAreNamed) {
  const TempDir dir;
  const auto path = MakeCheckpoint(dir.path(), 7);
  const auto first = path / "optimizer-00000-of-00002.safetensors";
  const auto second = path / "optimizer-00001-of-00002.safetensors";
  std::filesystem::rename(first, path / "x");
  std::filesystem::rename(second, first);
  std::filesystem::rename(path / "x", second);
  EXPECT_THAT(VerifyCheckpoint(path),
              ElementsAre(AllOf(StartsWith("optimizer-00000-of-00002.safetensors: hash"),
                                HasSubstr("state.json says")),
                          StartsWith("optimizer-00001-of-00002.safetensors: hash")));
  std::filesystem::resize_file(first, 100);
  std::filesystem::remove(second);
  EXPECT_THAT(VerifyCheckpoint(path),
              ElementsAre("optimizer-00000-of-00002.safetensors: 100 bytes (state.json says 136)",
                          HasSubstr("No such file")));
  std::filesystem::remove(path / "state.json");
  EXPECT_THAT(VerifyCheckpoint(path), ElementsAre(StartsWith("state.json: cannot be read")));
}

TEST(CheckpointDir, ARenamedCheckpointIsNotTakenForAnotherStep) {
  const TempDir dir;
  const auto path = MakeCheckpoint(dir.path(), 7);
  std::filesystem::rename(path, path.parent_path() / CheckpointName(8));
  EXPECT_THAT(VerifyCheckpoint(path.parent_path() / CheckpointName(8)),
              ElementsAre("state.json: step 7 (the folder says 8)"));
}

TEST(CheckpointDir, ANewerFormatIsRefusedAndNotCalledDamaged) {
  const TempDir dir;
  const auto path = MakeCheckpoint(dir.path(), 7);
  auto text = Read(path / "state.json");
  const auto version = text.find("\"format_version\": 1");
  ASSERT_NE(version, std::string::npos);
  EXPECT_THAT(text, HasSubstr("\"state_xxh3_128\""));
  // A file of version 2 with the right hash.
  text[version + 18] = '2';
  Write(path / "state.json", text);
  EXPECT_THAT(ReadCheckpointState(path), StatusIs(absl::StatusCode::kDataLoss));
  Write(path / "state.json", WithItsHash(text));
  EXPECT_THAT(ReadCheckpointState(path),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("format_version 2")));
}

TEST(CheckpointDir, TheNewestGoodOneIsChosenAndTheRejectedOnesAreNamed) {
  const TempDir dir;
  for (const int64_t step : {100, 200, 300}) MakeCheckpoint(dir.path(), step);
  const auto newest = CheckpointsDir(dir.path()) / CheckpointName(300);
  std::string bytes = Read(newest / "model.safetensors");
  bytes[50] ^= 1;
  Write(newest / "model.safetensors", bytes);
  const auto good = FindNewestGood(dir.path());
  ASSERT_OK(good);
  EXPECT_TRUE(good->found);
  EXPECT_EQ(good->entry.step, 200);
  EXPECT_THAT(good->rejected, ElementsAre(StartsWith("step-00000300: model.safetensors: hash")));
}

TEST(CheckpointDir, WhenNoneIsGoodNobodyStartsAfreshUnasked) {
  const TempDir dir;
  for (const int64_t step : {100, 200}) {
    std::filesystem::remove(MakeCheckpoint(dir.path(), step) / "model.safetensors");
  }
  EXPECT_THAT(FindNewestGood(dir.path()),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("NO_VALID_CHECKPOINT"), HasSubstr("step-00000100: model"))));
}

TEST(CheckpointDir, RetentionKeepsTheNewestThePinnedAndTheBest) {
  const TempDir dir;
  for (int64_t step = 1; step <= 6; ++step) MakeCheckpoint(dir.path(), step);
  Write(CheckpointsDir(dir.path()) / CheckpointName(2) / "PINNED", "");
  const auto all = *ListCheckpoints(dir.path());
  EXPECT_THAT(Steps(PastRetention(all, 3, 1)), ElementsAre(3));
  EXPECT_THAT(Steps(PastRetention(all, 2, 5)), ElementsAre(1, 3, 4));
  EXPECT_THAT(Steps(PastRetention(all, 10, 0)), IsEmpty());
}

TEST(CheckpointDir, RetentionNeverKeepsFewerThanTwo) {
  const TempDir dir;
  for (int64_t step = 1; step <= 3; ++step) MakeCheckpoint(dir.path(), step);
  for (const int keep : {2, 1, 0, -1}) {
    EXPECT_THAT(Steps(PastRetention(*ListCheckpoints(dir.path()), keep, 0)), ElementsAre(1))
        << keep;
  }
}

// A message with bytes that are not UTF-8 is refused by its receiver: one damaged file would
// hide the whole list.
TEST(CheckpointDir, WhatIsSaidOfADamagedManifestCanBeSent) {
  const TempDir dir;
  const std::filesystem::path checkpoint = dir / "checkpoints/step-00000005";
  std::filesystem::create_directories(checkpoint);
  Write(checkpoint / "state.json", "\xff\xfe{\x1b]0;x\x07" + std::string(100'000, '\xc3'));
  v1::CheckpointInfo received;
  ASSERT_TRUE(received.ParseFromString(CheckpointInfoOf({5, checkpoint}).SerializeAsString()));
  EXPECT_THAT(received.error(), HasSubstr("state.json: "));
  EXPECT_THAT(received.error(), Not(HasSubstr("\x1b")));
  EXPECT_LT(received.error().size(), 4'000u);
  received.set_error(VerifyCheckpoint(checkpoint).at(0));
  EXPECT_TRUE(received.ParseFromString(received.SerializeAsString()));
}

// A link may lead to a file that its maker may not read, and its size is not theirs to know either.
TEST(CheckpointDir, AFileThatIsALinkIsNotFollowed) {
  const TempDir dir;
  MakeCheckpoint(dir.path(), 5);
  const std::filesystem::path checkpoint = CheckpointsDir(dir.path()) / CheckpointName(5);
  Write(dir / "secret", std::string(54'321, 'x'));
  std::filesystem::remove(checkpoint / kModelFile);
  std::filesystem::create_symlink(dir / "secret", checkpoint / kModelFile);
  const std::vector<std::string> problems = VerifyCheckpoint(checkpoint);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(problems[0], StartsWith("model.safetensors: "));
  EXPECT_THAT(problems[0], Not(HasSubstr("54321")));
}

TEST(CheckpointDir, AHugeManifestIsRefusedWithoutBeingRead) {
  const TempDir dir;
  const std::filesystem::path checkpoint = dir / "checkpoints/step-00000005";
  std::filesystem::create_directories(checkpoint);
  std::ofstream(checkpoint / "state.json") << "{";
  std::filesystem::resize_file(checkpoint / "state.json", uintmax_t{6} << 30);  // sparse
  EXPECT_THAT(
      ReadCheckpointState(checkpoint),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("6442450944 bytes (at most 4194304)")));
  EXPECT_THAT(VerifyCheckpoint(checkpoint), ElementsAre(HasSubstr("at most 4194304")));
}

}  // namespace
}  // namespace nsa
