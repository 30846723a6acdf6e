// Keys from the bytes of a terminal. tests/client/view/top_keys_test.cc has them on a terminal.
#include "client/connect/keyboard.h"

#include <gtest/gtest.h>

namespace nsa::client {
namespace {

TEST(TakeKey, KnowsCharactersAndSequences) {
  std::string bytes = "aä\x1B[A\x1BOB\x1B[6~\r\x7F\x1A";
  EXPECT_EQ(TakeKey(&bytes, true).text, "a");
  EXPECT_EQ(TakeKey(&bytes, true).text, "ä");
  for (const Key key : {Key::kUp, Key::kDown, Key::kPageDown, Key::kEnter, Key::kBackspace,
                        Key::kSuspend, Key::kNone}) {
    EXPECT_EQ(TakeKey(&bytes, true).key, key);
  }
}

TEST(TakeKey, WaitsForTheRestOfAKey) {
  std::string bytes = "\x1B";
  EXPECT_EQ(TakeKey(&bytes, true).key, Key::kNone);
  bytes += "[";
  EXPECT_EQ(TakeKey(&bytes, true).key, Key::kNone);
  bytes += "B";
  EXPECT_EQ(TakeKey(&bytes, true).key, Key::kDown);
  bytes = "\x1B";
  EXPECT_EQ(TakeKey(&bytes, false).key, Key::kEscape) << "nothing has followed";
  bytes = "\x1Bq";
  EXPECT_EQ(TakeKey(&bytes, true).key, Key::kEscape);
  EXPECT_EQ(TakeKey(&bytes, true).text, "q");
  bytes = "\xC3";
  EXPECT_EQ(TakeKey(&bytes, true).key, Key::kNone);
  bytes += "\xA4";
  EXPECT_EQ(TakeKey(&bytes, true).text, "ä");
}

TEST(TakeKey, DropsWhatIsNoKeyOfOurs) {
  std::string bytes = "\x1B[15~\x01\x1B[1;5Cx";
  EXPECT_EQ(TakeKey(&bytes, true).text, "x") << "F5, Ctrl-A and Ctrl-Right";
  EXPECT_EQ(bytes, "");
}

}  // namespace
}  // namespace nsa::client
