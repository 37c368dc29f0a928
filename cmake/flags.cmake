# Warnings, hardening and sanitizers for our own host code (target bt_flags).
add_library(bt_flags INTERFACE)
target_compile_options(bt_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  -fno-omit-frame-pointer -fstack-protector-strong)
# The product is built by g++, whose warnings are errors; clang builds the fuzz targets alone and warns of other things.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(bt_flags INTERFACE -Werror)
else()
  target_compile_options(bt_flags INTERFACE -Wno-unknown-warning-option)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(bt_flags INTERFACE -Wno-restrict)  # g++ 12 sees overlaps in "text" + string that are not there
endif()
target_compile_definitions(bt_flags INTERFACE _GLIBCXX_ASSERTIONS)
# What of nlohmann's header nobody here uses costs every file that includes it half a second.
add_compile_definitions(JSON_HAS_RANGES=0 JSON_HAS_FILESYSTEM=0 JSON_HAS_EXPERIMENTAL_FILESYSTEM=0)
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  # Sanitizer builds: enough optimisation to keep the tests short, enough debug information to read a report.
  string(REPLACE "-g" "-g1" CMAKE_CXX_FLAGS_DEBUG "${CMAKE_CXX_FLAGS_DEBUG}")
  set(CMAKE_CXX_FLAGS_DEBUG "${CMAKE_CXX_FLAGS_DEBUG} -O1")
endif()
set(BT_SANITIZE "" CACHE STRING "sanitizers for every target: address,undefined or thread")
set(BT_SANITIZE_WITHOUT "" CACHE STRING "checks of these sanitizers that are left out: null,alignment,object-size,vptr")
if(BT_SANITIZE)
  add_compile_options(-fsanitize=${BT_SANITIZE} -fno-sanitize-recover=all)
  if(BT_SANITIZE_WITHOUT)
    add_compile_options(-fno-sanitize=${BT_SANITIZE_WITHOUT})
  endif()
  add_link_options(-fsanitize=${BT_SANITIZE})
endif()
