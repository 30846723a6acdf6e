#include "server/store/node/node_store.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "server/store/sealed.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::NodeCordon Cordon(const std::string& reason, bool drain = false) {
  v1::NodeCordon cordon;
  cordon.set_reason(reason);
  cordon.set_by("alice");
  cordon.set_unix_nanos(7);
  cordon.set_drain(drain);
  return cordon;
}

std::unique_ptr<NodeStore> Open(const TempDir& folder) {
  auto store = NodeStore::Open(folder.path());
  EXPECT_OK(store.status());
  return store.ok() ? *std::move(store) : nullptr;
}

TEST(NodeStore, KeepsCordonsOverARestart) {
  TempDir folder;
  {
    const auto store = Open(folder);
    EXPECT_THAT(store->All(), IsEmpty());
    ASSERT_OK(store->Put("a", Cordon("kernel")));
    ASSERT_OK(store->Put("b", Cordon("disk")));
    ASSERT_OK(store->Put("a", Cordon("another kernel", true)));
    ASSERT_OK(store->Remove("b"));
    ASSERT_OK(store->Remove("b")) << "again is no error";
    ASSERT_OK(store->Put("c", Cordon("")));
  }
  const Cordons all = Open(folder)->All();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all.at("a").SerializeAsString(), Cordon("another kernel", true).SerializeAsString());
  EXPECT_TRUE(all.contains("c"));
  EXPECT_EQ(std::filesystem::status(folder / "cordons.pb").permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(NodeStore, KeepsKnownMachinesBesideCordons) {
  TempDir folder;
  KnownNodes known;
  known["a"].set_boot_id("boot-1");
  known["b"];
  {
    const auto store = Open(folder);
    EXPECT_THAT(store->Known(), IsEmpty());
    ASSERT_OK(store->SetKnown(known));
    ASSERT_OK(store->Put("a", Cordon("kernel")));
  }
  const auto store = Open(folder);
  EXPECT_EQ(store->Known().size(), 2u);
  EXPECT_EQ(store->Known().at("a").boot_id(), "boot-1");
  EXPECT_TRUE(store->All().contains("a"));
  const auto written = std::filesystem::last_write_time(folder / "cordons.pb");
  const auto inode = [&] {
    struct stat info {};
    EXPECT_EQ(stat((folder / "cordons.pb").c_str(), &info), 0);
    return info.st_ino;
  };
  const auto before = inode();
  ASSERT_OK(store->SetKnown(known));
  EXPECT_EQ(inode(), before) << "nothing differs, so nothing is written";
  EXPECT_EQ(std::filesystem::last_write_time(folder / "cordons.pb"), written);
  known.erase("b");
  ASSERT_OK(store->SetKnown(known));
  EXPECT_EQ(Open(folder)->Known().size(), 1u);
}

TEST(NodeStore, ACordonThatCannotBeWrittenIsNotInForce) {
  TempDir folder;
  const auto store = Open(folder);
  ASSERT_OK(store->Put("a", Cordon("kernel")));
  std::filesystem::create_directory(folder / "cordons.pb.tmp");
  std::ofstream(folder / "cordons.pb.tmp/in-the-way");
  EXPECT_FALSE(store->Put("b", Cordon("disk")).ok());
  EXPECT_FALSE(store->Remove("a").ok());
  EXPECT_EQ(store->All().size(), 1u);
  EXPECT_TRUE(store->All().contains("a"));
}

TEST(NodeStore, RefusesADamagedFileAndSaysWhatToDo) {
  TempDir folder;
  ASSERT_OK(Open(folder)->Put("a", Cordon("kernel")));
  {
    std::fstream file(folder / "cordons.pb", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4);
    file.put('!');
  }
  EXPECT_THAT(NodeStore::Open(folder.path()).status(),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("cordons.pb"), HasSubstr("nsactl node cordon"))));
}

TEST(NodeStore, DoesNotReadAHugeFile) {
  TempDir folder;
  { const std::ofstream file(folder / "cordons.pb"); }
  std::filesystem::resize_file(folder / "cordons.pb", int64_t{1} << 40);
  EXPECT_THAT(NodeStore::Open(folder.path()).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("at most 8388608")));
}

TEST(NodeStore, HoldsAsManyAsThereMayBeMachines) {
  TempDir folder;
  v1::StoredCordons many;
  for (size_t i = 0; i < limits::kNodes; ++i) {
    (*many.mutable_nodes())[absl::StrCat("n", i)] = Cordon("");
  }
  std::ofstream(folder / "cordons.pb", std::ios::binary) << Seal(many);
  const auto store = Open(folder);
  EXPECT_THAT(store->Put("one-more", Cordon("")), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(store->Put("n7", Cordon("again")));
}

}  // namespace
}  // namespace nsa::server
