# A room is a folder under src/ with one purpose, built as one static library, declared once:
#
#   bt_room(NAME SRCS a.cc ... [TESTS a_test.cc ...] [SLOW b_test.cc ...] [DEPS room ...] [LIBS external ...])
#
# DEPS is the whole list of rooms that it may include; tools/check_layers.py, which runs in the tests, refuses any
# other include. Each test file becomes one executable and one ctest entry. SLOW are tests that take
# minutes under sanitizers: they have the label slow, and ./test.sh neither builds nor runs them there.
function(bt_room name)
  cmake_parse_arguments(ROOM "" "" "SRCS;TESTS;SLOW;DEPS;LIBS" ${ARGN})
  set(target bt_${name})
  if(ROOM_SRCS)
    add_library(${target} STATIC ${ROOM_SRCS})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE bt_flags)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${PROJECT_SOURCE_DIR}/src)
  foreach(dep ${ROOM_DEPS})
    target_link_libraries(${target} ${scope} bt_${dep})
  endforeach()
  target_link_libraries(${target} ${scope} ${ROOM_LIBS})
  if(BT_TESTS)
    foreach(test ${ROOM_TESTS})
      bt_test(${name} ${test} LINK ${target})
    endforeach()
    foreach(test ${ROOM_SLOW})
      bt_test(${name} ${test} LINK ${target} LABELS slow)
    endforeach()
  endif()
endfunction()

# The tests' own files are compiled with little optimisation: it is the rooms that take time when tests run, and files full of
# test macros take the compiler two to three times as long with more of it.
if(BT_SANITIZE)
  set(bt_test_optimisation -O0)
else()
  set(bt_test_optimisation -O1)
endif()

# Every test is built by default. ./test.sh, which compiles everything on a machine that has nothing yet, builds most of them
# once: with BT_TESTS_OF=release those of the first two lists and the slow ones, with BT_TESTS_OF=sanitized all but those of the
# first, which are numbers of whole models and the folders of the program itself, and the slow ones.
set(bt_release_rooms model forms bench_serve chat cli doctor inspect launch pull terminal verify)
set(bt_both_rooms tensor ops weights vision schedule)  # numbers that depend on how the compiler optimises, or long runs

add_custom_target(unit_tests)  # all that run without a GPU, and not the program

# bt_test(ROOM FILE_test.cc [LINK targets] [LABELS labels]): one executable, one ctest entry "ROOM/FILE_test".
function(bt_test room file)
  cmake_parse_arguments(T "" "" "LINK;LABELS" ${ARGN})
  if((BT_TESTS_OF STREQUAL "release" AND NOT room IN_LIST bt_release_rooms AND NOT room IN_LIST bt_both_rooms
          AND NOT "slow" IN_LIST T_LABELS)
      OR (BT_TESTS_OF STREQUAL "sanitized" AND (room IN_LIST bt_release_rooms OR "slow" IN_LIST T_LABELS)))
    return()
  endif()
  get_filename_component(stem ${file} NAME_WE)
  set(exe ${room}_${stem})
  add_executable(${exe} ${file})
  target_link_libraries(${exe} PRIVATE ${T_LINK} bt_test_support bt_flags GTest::gmock GTest::gtest_main)
  target_compile_options(${exe} PRIVATE ${bt_test_optimisation})
  add_test(NAME ${room}/${stem} COMMAND ${exe} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT stem MATCHES "^gpu_")
    add_dependencies(unit_tests ${exe})
  endif()
  set_tests_properties(${room}/${stem} PROPERTIES LABELS "unit;${T_LABELS}" TIMEOUT 600)
  if("slow" IN_LIST T_LABELS)
    set_tests_properties(${room}/${stem} PROPERTIES COST 50 TIMEOUT 3600)  # begun first, by a first run too
  endif()
endfunction()
