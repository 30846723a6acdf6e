#include "worker/train/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

const auto kExchanged = StatusIs(absl::StatusCode::kFailedPrecondition);

// The open folder `out`, and beside it `elsewhere` with a file that must not be touched.
class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    std::filesystem::create_directory(dir_ / "elsewhere");
    std::ofstream(dir_ / "elsewhere/f") << "precious";
    out_ = *Folder::Make(dir_ / "out");
  }
  ~FolderTest() override {
    EXPECT_EQ(*ReadWholeFile(dir_ / "elsewhere/f"), "precious");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_ / "elsewhere"), {}), 1);
  }

  // Replaces `out` with a link to `elsewhere`.
  void Exchange() {
    std::filesystem::rename(dir_ / "out", dir_ / "moved");
    std::filesystem::create_directory_symlink("elsewhere", dir_ / "out");
  }

  const TempDir dir_;
  Folder out_;
};

TEST_F(FolderTest, WritesWhereItWasOpenedWhateverLiesAtItsPath) {
  ASSERT_OK(out_.CheckInPlace());
  Exchange();
  ASSERT_OK(out_.WriteAtomically("f", "mine"));
  EXPECT_EQ(*out_.Read("f"), "mine");
  EXPECT_EQ(*ReadWholeFile(dir_ / "moved/f"), "mine");
  ASSERT_OK(out_.Rename("f", "g"));
  EXPECT_THAT(*out_.Names(), UnorderedElementsAre("g"));
  ASSERT_OK(out_.RemoveAll("g"));
  ASSERT_OK(out_.RemoveAll("f"));
  const auto inner = out_.MakeFolder("inner");
  ASSERT_OK(inner);
  EXPECT_TRUE(std::filesystem::is_directory(dir_ / "moved/inner"));
  EXPECT_THAT(out_.CheckInPlace(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/out: no longer the folder"), HasSubstr("put it back"))));
  EXPECT_THAT(inner->CheckInPlace(), kExchanged) << "nor is what lies in it";
  std::filesystem::remove(dir_ / "out");
  EXPECT_THAT(out_.CheckInPlace(), kExchanged);
  std::filesystem::rename(dir_ / "moved", dir_ / "out");
  EXPECT_OK(inner->CheckInPlace());
}

TEST_F(FolderTest, MayBeReachedThroughLinks) {
  std::filesystem::create_directory_symlink("out", dir_ / "link");
  const auto folder = Folder::Make(dir_ / "link");
  ASSERT_OK(folder);
  ASSERT_OK(folder->WriteAtomically("g", "x"));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "out/g"));
  EXPECT_OK(folder->CheckInPlace());
}

TEST_F(FolderTest, FollowsNoLinkToAFile) {
  std::filesystem::create_symlink("../elsewhere/f", dir_ / "out/f");
  EXPECT_THAT(out_.Open("f", O_RDWR | O_CREAT | O_TRUNC),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/out/f: "), HasSubstr("symbolic link"))));
  EXPECT_THAT(out_.Read("f"), kExchanged);
  EXPECT_TRUE(out_.Has("f"));
  const auto created = out_.Create("f");
  ASSERT_OK(created);
  EXPECT_EQ(write(created->get(), "mine", 4), 4);
  EXPECT_EQ(*ReadWholeFile(dir_ / "out/f"), "mine");
}

TEST_F(FolderTest, NeitherWaitsForNorReadsAPipe) {
  ASSERT_EQ(mkfifo((dir_ / "out/f").c_str(), 0600), 0);
  EXPECT_THAT(out_.Read("f"), kExchanged);
  EXPECT_THAT(out_.Open("f", O_WRONLY), kExchanged);
}

TEST_F(FolderTest, FollowsNoLinkToAFolder) {
  std::filesystem::create_directory_symlink("../elsewhere", dir_ / "out/inner");
  EXPECT_THAT(out_.MakeFolder("inner"), kExchanged);
  ASSERT_OK(out_.RemoveAll("inner"));
  EXPECT_FALSE(out_.Has("inner"));
}

TEST_F(FolderTest, AFolderWithinIsOutOfPlaceWhenALinkLeadsToIt) {
  const auto inner = out_.MakeFolder("inner");
  ASSERT_OK(inner);
  EXPECT_OK(inner->CheckInPlace());
  std::filesystem::rename(dir_ / "out/inner", dir_ / "moved");
  std::filesystem::create_directory_symlink("../moved", dir_ / "out/inner");
  EXPECT_THAT(inner->CheckInPlace(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/out/inner: ")));
}

TEST_F(FolderTest, RemovesWhatIsInAFolderButNotWhatLinksInItLeadTo) {
  std::filesystem::create_directories(dir_ / "out/old/deeper");
  std::filesystem::create_directory_symlink("../../elsewhere", dir_ / "out/old/folder");
  std::filesystem::create_symlink("../../../elsewhere/f", dir_ / "out/old/deeper/file");
  ASSERT_OK(out_.RemoveAll("old"));
  EXPECT_THAT(*out_.Names(), UnorderedElementsAre());
}

TEST_F(FolderTest, PublishesANewNameAndExchangesATakenOne) {
  const auto make = [&](const std::string& name, const std::string& content) {
    EXPECT_OK(out_.MakeFolder(name)->WriteAtomically("x", content));
  };
  make("tmp", "one");
  ASSERT_OK(out_.Publish("tmp", "final"));
  EXPECT_THAT(*out_.Names(), UnorderedElementsAre("final"));
  make("tmp", "two");
  ASSERT_OK(out_.Publish("tmp", "final"));
  EXPECT_EQ(*ReadWholeFile(dir_ / "out/final/x"), "two");
  EXPECT_EQ(*ReadWholeFile(dir_ / "out/tmp/x"), "one");
}

TEST_F(FolderTest, PointsALinkWhateverWasThereBefore) {
  std::filesystem::create_symlink("../elsewhere/f", dir_ / "out/latest");
  std::filesystem::create_symlink("../elsewhere/f", dir_ / "out/latest.tmp");
  ASSERT_OK(out_.PointLink("latest", "step-1"));
  ASSERT_OK(out_.PointLink("latest", "step-2"));
  EXPECT_EQ(std::filesystem::read_symlink(dir_ / "out/latest"), "step-2");
  EXPECT_THAT(*out_.Names(), UnorderedElementsAre("latest"));
}

}  // namespace
}  // namespace nsa::train
