#include "worker/train/needle/commands.h"

#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::train {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

class WriteNeedlesTest : public testing::Test {
 protected:
  std::vector<std::string> Texts(const NeedleDocuments& options) {
    EXPECT_OK(WriteNeedles(file_, options));
    std::vector<std::string> texts;
    const std::string written = ReadWholeFile(file_).value_or("");
    for (const absl::string_view line : absl::StrSplit(written, '\n', absl::SkipEmpty())) {
      texts.push_back(nlohmann::json::parse(line.begin(), line.end()).at("text"));
    }
    return texts;
  }

  const TempDir dir_;
  const std::string file_ = (dir_ / "needle.jsonl").string();
};

TEST_F(WriteNeedlesTest, DocumentsOfOneKeyHaveTheseBytes) {
  EXPECT_THAT(Texts({.documents = 3, .bytes = 150}),
              ElementsAre("The sky is \n"
                          "The pass key is 89631. Remember it. 89631 is the pass key.\n"
                          "blue. The sun is yellow. Here we ..\n"
                          "What is the pass key? The pass key is 89631",
                          "green. .\n"
                          "The pass key is 80803. Remember it. 80803 is the pass key.\n"
                          "The sky is blue. The sun is yellow. ..\n"
                          "What is the pass key? The pass key is 80803",
                          "go. There and back again. The grass \n"
                          "The pass key is 51277. Remember it. 51277 is the pass key.\n"
                          "is green. \n"
                          "What is the pass key? The pass key is 51277"));
}

TEST_F(WriteNeedlesTest, WithoutRoomTheOldFileStays) {
  ASSERT_OK(WriteNeedles(file_, {.documents = 1, .bytes = 150}));
  const std::string before = ReadWholeFile(file_).value_or("");
  absl::Status status;
  {
    const FileSizeLimit limit(10'000);
    status = WriteNeedles(file_, {.documents = 1'000, .bytes = 150});
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               testing::HasSubstr(file_ + ": cannot be written: ")));
  EXPECT_EQ(ReadWholeFile(file_).value_or(""), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1);
}

// Otherwise a model could tell the number from where the first sentence is.
TEST_F(WriteNeedlesTest, TheDepthSaysNothingAboutTheCount) {
  double depths = 0;
  int ones = 0;
  for (const std::string& text :
       Texts({.task = NeedleTask::kCount, .documents = 2'000, .bytes = 2'000})) {
    if (!text.ends_with(" 1")) continue;
    depths += static_cast<double>(text.find("\nThe word is ")) / 2'000;
    ++ones;
  }
  EXPECT_NEAR(ones, 222, 50);
  EXPECT_NEAR(depths / ones, 0.5, 0.1);
}

TEST_F(WriteNeedlesTest, RefusesDocumentsThatAreTooShortForTheTask) {
  for (const NeedleTask task : {NeedleTask::kKey, NeedleTask::kKeys, NeedleTask::kValues,
                                NeedleTask::kTrace, NeedleTask::kCount}) {
    const auto least = static_cast<int64_t>(LeastBytes(task));
    EXPECT_THAT(Texts({.task = task, .documents = 2, .bytes = least}), SizeIs(2));
    EXPECT_THAT(WriteNeedles(file_, {.task = task, .bytes = least - 1}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(WriteNeedles(file_, {.task = NeedleTask::kTrace, .bytes = 254}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "bytes of a document: 254 (from 255 to 16777216 for the task trace); "
                       "choose a number"));
}

}  // namespace
}  // namespace nsa::train
