// The files of the page as they are compiled in: what index.html names is there, and it names what
// the page needs first.
#include "server/web/assets.h"

#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace nsa::server {
namespace {

using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using Names = std::set<std::string>;

// The content of a file; empty when there is none.
std::string Content(const std::string& path) {
  const std::optional<Asset> asset = FindAsset(path);
  return asset.has_value() ? Inflate(asset->gzip) : "";
}

// The first group of every match.
Names Matches(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  Names found;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at) {
    found.insert((*at)[1]);
  }
  return found;
}

// All modules that app.js needs, in however many steps, without itself.
Names ModulesOfThePage() {
  Names found;
  std::vector<std::string> open = {"app.js"};
  while (!open.empty()) {
    const std::string text = Content("/" + open.back());
    open.pop_back();
    for (const std::string& name : Matches(text, R"(from '\./([a-z_]+\.js)')")) {
      if (found.insert(name).second) open.push_back(name);
    }
  }
  return found;
}

std::string Folder() {
  const Names folders = Matches(Content("/"), R"re("([0-9a-f]{16})/)re");
  return folders.size() == 1 ? *folders.begin() : "";
}

TEST(Assets, IndexNamesEveryFileInAFolderThatBrowsersMayKeep) {
  const std::string index = Content("/");
  ASSERT_THAT(Folder(), SizeIs(16)) << index;
  const Names named = Matches(index, R"re((?:href|src)="([^"#]+)")re");
  EXPECT_THAT(named, SizeIs(ModulesOfThePage().size() + 7));
  for (const std::string& path : named) {
    const std::optional<Asset> asset = FindAsset("/" + path);
    ASSERT_TRUE(asset.has_value()) << path;
    EXPECT_TRUE(asset->lasting) << path;
    EXPECT_EQ(Inflate(asset->gzip), Content(path.substr(16)));
  }
}

// A module that is not in the list is asked for only when the one that imports it is there.
TEST(Assets, IndexListsTheModulesThatThePageImports) {
  const Names modules = ModulesOfThePage();
  EXPECT_THAT(modules, IsSupersetOf({"api.js", "job.js", "chart.js", "trace.js"}));
  const Names listed = Matches(
      Content("/"), absl::StrCat(R"re(rel="modulepreload" href=")re", Folder(), "/([^\"]+)"));
  EXPECT_EQ(listed, modules);
}

TEST(Assets, AFileIsCurrentUnderItsOwnName) {
  for (const std::string path : {"/", "/index.html", "/app.js", "/uPlot.min.css"}) {
    const std::optional<Asset> asset = FindAsset(path);
    ASSERT_TRUE(asset.has_value()) << path;
    EXPECT_FALSE(asset->lasting) << path;
  }
  for (const std::string path :
       {"/none.js", "/0123456789abcdef/app.js", "", "//app.js", "app.js"}) {
    EXPECT_FALSE(FindAsset(path).has_value()) << path;
  }
  EXPECT_FALSE(FindAsset(absl::StrCat("/", Folder(), "app.js")).has_value());
  EXPECT_FALSE(FindAsset(absl::StrCat("/", Folder(), "/")).has_value());
}

// Requests that differ are sent twice: what early.js asks for must be what a job's page asks for.
TEST(Assets, WhatIsAskedForEarlyIsWhatThePageOfAJobShows) {
  const Names early = Matches(Content("/early.js"), R"(curves\?points=([0-9]+))");
  ASSERT_THAT(early, SizeIs(1));
  EXPECT_EQ(Matches(Content("/job.js"), "const POINTS = ([0-9]+);"), early);
}

}  // namespace
}  // namespace nsa::server
