#! 
echo
